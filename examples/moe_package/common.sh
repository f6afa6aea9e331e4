# shellcheck shell=bash
# What the run scripts share. A script sets its defaults, calls `begin`, adds its own arguments and calls `launch`.
#
# Every script takes overrides of the experiment as arguments, which win over all that it passes itself:
#   bash examples/moe_package/run_deepseek_v2_lite_pretrain_mi355x.sh --train_iters 50 --lr 3e-4
# and reads the environment, here with what it means. Every value is checked before anything else (check_variables):
# switches are True or False, in any case, or 1 or 0; an empty variable counts as one that is not set.
#   DRY_RUN=1        print the plan, and stop
#   MoE_Features     what to switch on, as in MoE_Features="3 4 7":
#                      0 nothing, the baseline      5 sync-free MoE, stage SYNC_FREE_STAGE (1)
#                      1 turbo attention            6 NUMA binding and a large kernel-argument pool
#                      2 turbo grouped GEMM         7 manual garbage collection
#                      3 fused loss                 8 UCCL as the transport of DeepEP
#                      4 DeepEP
#   MBS GBS SEQ_LENGTH TRAIN_ITERS           micro-batch, global batch, sequence length, steps
#   TP ETP PP VPP EP CP CP_COMM_TYPE         parallel sizes
#   ENABLE_MLA ENABLE_MTP FP8 LEGACY_GG LOAD_BALANCE                    switches
#   OPTIMIZER                                adam, sgd or another one that the program knows
#   RECOMPUTE_LAYERS, RECOMP_IDS             so many layers of each stage, or these layers, run again in backward
#   PROFILE=True, DUMP_PP_DATA=True          a trace of one step; what every pipeline stage did and when
#   PRETRAIN_TYPE, CHIP                      BF16 or FP8; MI355X or MI300X: which experiment, where a script has several
#   TURBO_ATTENTION TURBO_RMS_NORM TURBO_GG ROPE_FUSION DEEPEP          switches of the large models
#   LAYERS LAST_STAGE_LAYERS LAYOUT DEEPEP_NUM_CU                       sizes of the large models
#   NNODES GPUS_PER_NODE LAUNCH              nodes, devices a node; direct, slurm or container
#   EXP, PRIMUS_EXP_NAME, PRIMUS_CLI         another experiment, name of the run, program
#   LOG_FILE, EXPORT_CONFIG                  files for a copy of the output and for the resolved experiment

script=$(realpath "$0")

# Experiments and ./output are named from the root of the repository.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

args=()

die() {
  echo "${0##*/}: $1" >&2
  exit 2
}

# --- what the variables may be ---------------------------------------------------------------------------------------

complaints=()

complain() {
  complaints+=("$1 is '${!1}'; it may be $2")
}

# A variable that is set and not empty; an empty one is unset, so that the defaults below apply.
is_given() {
  if [ -n "${!1:-}" ]; then return 0; fi
  unset "$1"
  return 1
}

# Switches are spelled True and False from here on.
check_switches() {
  local name
  for name in "$@"; do
    is_given "$name" || continue
    case "${!name,,}" in
      true | 1) printf -v "$name" True ;;
      false | 0) printf -v "$name" False ;;
      *) complain "$name" "True or False (or 1 or 0)" ;;
    esac
  done
}

# check_counts LEAST NAME...: whole numbers in decimal notation.
check_counts() {
  local least=$1 name
  shift
  for name in "$@"; do
    is_given "$name" || continue
    if [[ ! ${!name} =~ ^(0|[1-9][0-9]{0,8})$ ]] || [ "${!name}" -lt "$least" ]; then
      complain "$name" "a whole number from $least on"
    fi
  done
}

# check_word NAME WORD...
check_word() {
  local name=$1 word
  shift
  is_given "$name" || return 0
  for word in "$@"; do
    if [ "${!name}" = "$word" ]; then return 0; fi
  done
  complain "$name" "one of: $*"
}

# check_pattern NAME REGEX MEANING
check_pattern() {
  is_given "$1" || return 0
  if [[ ! ${!1} =~ ^($2)$ ]]; then complain "$1" "$3"; fi
}

# Everything that the scripts read, told in one go. What only the program knows (layouts, optimizers) it checks itself.
check_variables() {
  check_switches DRY_RUN ENABLE_MLA ENABLE_MTP FP8 LEGACY_GG LOAD_BALANCE PROFILE DISABLE_CPU_TRACE DUMP_PP_DATA \
    TURBO_ATTENTION TURBO_RMS_NORM TURBO_GG ROPE_FUSION DEEPEP
  check_counts 1 NNODES GPUS_PER_NODE MBS GBS SEQ_LENGTH TRAIN_ITERS TP ETP PP VPP EP CP DEEPEP_NUM_CU LAYERS EXPERTS \
    TOPK CPUS_PER_TASK
  check_counts 0 RECOMPUTE_LAYERS PROFILE_STEP_START PROFILE_STEP_END LAST_STAGE_LAYERS
  check_word SYNC_FREE_STAGE 1 2 3
  check_word CP_COMM_TYPE a2a p2p all_gather a2a+p2p
  check_word LAUNCH direct slurm container
  check_word PRETRAIN_TYPE BF16 FP8
  check_word CHIP MI355X MI300X
  check_pattern OPTIMIZER '[a-z_]+' "the name of an optimizer"
  check_pattern RECOMP_IDS '[0-9]+(,[0-9]+)*' "layer numbers with commas between them"
  check_pattern MoE_Features ' *[0-8]( +[0-8])* *' "features from 0 to 8, with spaces between them"
  local text
  for text in EXP PRIMUS_EXP_NAME PRIMUS_CLI LOG_FILE EXPORT_CONFIG LAYOUT; do is_given "$text" || true; done
  if [ ${#complaints[@]} -eq 0 ]; then return 0; fi
  printf '%s: %s\n' "${0##*/}" "${complaints[0]}" >&2
  if [ ${#complaints[@]} -gt 1 ]; then printf '  %s\n' "${complaints[@]:1}" >&2; fi
  exit 2
}

check_variables

# --- which of them a script reads --------------------------------------------------------------------------------------

# Variables of some scripts only. What is set and read by nobody is told by `launch`: whoever set it meant something.
given=()
for name in LAYERS LAYOUT LAST_STAGE_LAYERS TURBO_ATTENTION TURBO_RMS_NORM TURBO_GG ROPE_FUSION DEEPEP DEEPEP_NUM_CU \
  EXPERTS TOPK COMPRESS_RATIOS ENABLE_MLA ENABLE_MTP SYNC_FREE_STAGE OPTIMIZER LOAD_BALANCE RECOMPUTE_LAYERS RECOMP_IDS \
  PROFILE DUMP_PP_DATA PRETRAIN_TYPE CHIP; do
  if [ -n "${!name:-}" ]; then given+=("$name"); fi
done

read_names=()

# reads NAME...: what a function takes from the environment; what the script itself names counts by itself.
reads() {
  read_names+=("$@")
}

mention_unread() {
  local name
  for name in "${given[@]}"; do
    if [[ " ${read_names[*]} " == *" $name "* ]] || grep -q "\b$name\b" "$script"; then continue; fi
    echo "${0##*/}: note: $name is set, but this script does not read it" >&2
  done
}

# --- what a run is made of -------------------------------------------------------------------------------------------

has_feature() {
  [[ " $MoE_Features " == *" $1 "* ]]
}

# True if turbo grouped GEMM is asked for, by itself or through a sync-free stage.
wants_turbo_grouped_gemm() {
  has_feature 2 || { has_feature 5 && [ "$SYNC_FREE_STAGE" -ge 2 ]; }
}

# Defaults that a script did not set, and what every run exports.
begin() {
  : "${NNODES:=1}" "${GPUS_PER_NODE:=8}" "${LAUNCH:=direct}"
  : "${SEQ_LENGTH:=4096}" "${TP:=1}" "${ETP:=1}" "${PP:=1}" "${VPP:=1}" "${EP:=8}" "${CP:=1}" "${CP_COMM_TYPE:=a2a}"
  : "${LOAD_BALANCE:=True}" "${OPTIMIZER:=adam}" "${TRAIN_ITERS:=10}" "${FP8:=False}" "${RECOMPUTE_LAYERS:=0}"
  : "${MoE_Features:=0}" "${SYNC_FREE_STAGE:=1}"
  : "${PROFILE:=False}" "${DISABLE_CPU_TRACE:=False}" "${PROFILE_STEP_START:=5}" "${PROFILE_STEP_END:=6}"
  # Turbo and legacy grouped GEMM exclude each other: the default yields to a feature, a value of the user's does not.
  if wants_turbo_grouped_gemm; then : "${LEGACY_GG:=False}"; else : "${LEGACY_GG:=True}"; fi
  export NNODES GPUS_PER_NODE
  export GPU_MAX_HW_QUEUES=${GPU_MAX_HW_QUEUES:-2}
  export HSA_NO_SCRATCH_RECLAIM=${HSA_NO_SCRATCH_RECLAIM:-1}
  export NVTE_CK_USES_BWD_V3=${NVTE_CK_USES_BWD_V3:-1}
}

# Batch and parallel sizes, as every script passes them.
add_sizes() {
  args+=(
    --micro_batch_size "$MBS" --global_batch_size "$GBS" --train_iters "$TRAIN_ITERS"
    --seq_length "$SEQ_LENGTH" --max_position_embeddings "$SEQ_LENGTH"
    --tensor_model_parallel_size "$TP" --expert_tensor_parallel_size "$ETP"
    --pipeline_model_parallel_size "$PP" --expert_model_parallel_size "$EP"
    --context_parallel_size "$CP" --cp_comm_type "$CP_COMM_TYPE"
  )
}

# The switches of the scripts with features.
add_switches() {
  reads ENABLE_MLA ENABLE_MTP OPTIMIZER LOAD_BALANCE RECOMPUTE_LAYERS RECOMP_IDS
  args+=(
    --mock_data True --moe_router_force_load_balancing "$LOAD_BALANCE"
    --optimizer "$OPTIMIZER" --moe_use_legacy_grouped_gemm "$LEGACY_GG"
  )
  if [ -n "${ENABLE_MLA:-}" ]; then args+=(--multi_latent_attention "$ENABLE_MLA"); fi
  case "${ENABLE_MTP:-}" in
    True) args+=(--mtp_num_layers 1 --mtp_loss_scaling_factor 0.1) ;;
    False) args+=(--mtp_num_layers None) ;;
  esac
  if [ "$VPP" -gt 1 ]; then args+=(--num_virtual_stages_per_pipeline_rank "$VPP"); fi
  if [ "$FP8" = True ]; then args+=(--fp8 hybrid); fi
  if [ -n "${RECOMP_IDS:-}" ] || [ "$RECOMPUTE_LAYERS" -gt 0 ]; then add_recompute; fi
  add_profile
}

# Either so many layers of each stage or chosen ones; each clears what an experiment says about the other.
add_recompute() {
  if [ -n "${RECOMP_IDS:-}" ]; then
    args+=(--recompute_granularity full --recompute_layer_ids "$RECOMP_IDS")
    args+=(--recompute_method None --recompute_num_layers None)
  else
    args+=(--recompute_granularity full --recompute_method block --recompute_num_layers "$RECOMPUTE_LAYERS")
    args+=(--recompute_layer_ids None)
  fi
}

add_profile() {
  reads PROFILE DUMP_PP_DATA
  if [ "$PROFILE" = True ]; then
    args+=(
      --profile True --use_pytorch_profiler True --disable_profiler_activity_cpu "$DISABLE_CPU_TRACE"
      --profile_step_start "$PROFILE_STEP_START" --profile_step_end "$PROFILE_STEP_END"
    )
  fi
  if [ "${DUMP_PP_DATA:-False}" = True ]; then args+=(--dump_pp_data True); fi
}

# choose_deepep_units NUMBER: so many within a node; between nodes (from 16 expert ranks on) DeepEP takes 32 at most.
choose_deepep_units() {
  reads DEEPEP_NUM_CU
  if [ "$EP" -ge 16 ]; then : "${DEEPEP_NUM_CU:=32}"; else : "${DEEPEP_NUM_CU:=$1}"; fi
}

add_features() {
  local feature needs_turbo=False
  for feature in $MoE_Features; do
    case "$feature" in
      0) ;;
      1)
        needs_turbo=True
        args+=(--use_turbo_attention True)
        ;;
      2)
        needs_turbo=True
        args+=(--use_turbo_grouped_gemm True)
        ;;
      3) args+=(--cross_entropy_fusion_impl te --cross_entropy_loss_fusion True) ;;
      4)
        needs_turbo=True
        choose_deepep_units 64
        args+=(
          --use_turbo_deepep True --turbo_deepep_num_cu "$DEEPEP_NUM_CU" --turbo_deepep_use_comm_stream False
          --moe_shared_expert_overlap False --moe_router_dtype fp32
        )
        ;;
      5)
        needs_turbo=True
        reads SYNC_FREE_STAGE
        # Stage 1 fuses router and permutation; 2 brings DeepEP and turbo grouped GEMM with it (MI300X, MI325X).
        # A stage switches these on by itself, but the baselines say no to the first two.
        args+=(
          --turbo_sync_free_moe_stage "$SYNC_FREE_STAGE"
          --moe_use_fused_router_with_aux_score True --moe_permute_fusion True
        )
        if [ "$SYNC_FREE_STAGE" -ge 2 ]; then
          args+=(--use_turbo_grouped_gemm True --moe_shared_expert_overlap False --moe_router_dtype fp32)
        fi
        ;;
      6) export ENABLE_NUMA_BINDING=1 HSA_KERNARG_POOL_SIZE=12582912 ;;
      7) args+=(--manual_gc True --manual_gc_interval 1) ;;
      8) export USING_UEP=1 ;;
    esac
  done
  if [ "$needs_turbo" = True ]; then args+=(--enable_primus_turbo True); fi
}

# What the scripts of the large released models set beside batch and sizes. LAYERS, LAYOUT, LAST_STAGE_LAYERS,
# TURBO_ATTENTION, TURBO_RMS_NORM and ROPE_FUSION may be empty: then the experiment decides.
add_large_model() {
  export PRIMUS_TURBO_DEEPEP_TIMEOUT=${PRIMUS_TURBO_DEEPEP_TIMEOUT:-600}
  reads LAYERS LAYOUT LAST_STAGE_LAYERS TURBO_ATTENTION TURBO_RMS_NORM TURBO_GG ROPE_FUSION DEEPEP
  reads RECOMPUTE_LAYERS RECOMP_IDS
  : "${TURBO_GG:=False}" "${DEEPEP:=True}"
  choose_deepep_units 80
  args+=(
    --enable_primus_turbo True --use_turbo_grouped_gemm "$TURBO_GG" --moe_use_legacy_grouped_gemm "$LEGACY_GG"
    --use_turbo_deepep "$DEEPEP" --turbo_deepep_num_cu "$DEEPEP_NUM_CU"
  )
  if [ -n "${LAYERS:-}" ]; then args+=(--num_layers "$LAYERS" --moe_layer_freq 1 --mtp_num_layers 0); fi
  if [ -n "${TURBO_ATTENTION:-}" ]; then args+=(--use_turbo_attention "$TURBO_ATTENTION"); fi
  if [ -n "${TURBO_RMS_NORM:-}" ]; then args+=(--use_turbo_rms_norm "$TURBO_RMS_NORM"); fi
  if [ -n "${ROPE_FUSION:-}" ]; then args+=(--apply_rope_fusion "$ROPE_FUSION"); fi
  if [ "${ROPE_FUSION:-}" = True ]; then args+=(--enable_experimental True); fi
  add_recompute
  add_stages
  add_profile
}

# Exactly one way to cut the model: a layout, a count for the last stage, or even chunks.
add_stages() {
  args+=(
    --pipeline_model_parallel_layout "${LAYOUT:-None}"
    --decoder_last_pipeline_num_layers "${LAST_STAGE_LAYERS:-None}"
  )
  if [ "$VPP" -gt 1 ]; then
    args+=(--virtual_pipeline_model_parallel_size "$VPP")
    if [ -z "${LAYOUT:-}" ]; then args+=(--num_virtual_stages_per_pipeline_rank "$VPP"); fi
  else
    args+=(--virtual_pipeline_model_parallel_size None)
  fi
}

add_learning_rate() {
  args+=(--lr 2.2e-4 --min_lr 2.2e-5 --lr_warmup_iters 200 --lr_decay_iters 5000 --lr_decay_style cosine)
}

add_bf16_optimizer() {
  args+=(--use_precision_aware_optimizer True --main_grads_dtype bf16 --exp_avg_dtype bf16 --exp_avg_sq_dtype bf16)
}

# `layout 7 8x6 7` prints the layout of eight stages, Et*7|t*8|...|t*7,L.
layout() {
  local group text=
  local -i i
  for group in "$@"; do
    if [[ $group != *x* ]]; then group+=x1; fi
    for ((i = 0; i < ${group#*x}; ++i)); do text+="|t*${group%x*}"; done
  done
  echo "E${text#|},L"
}

# What the four-layer proxies share: one stage of a large model's layers, all of them MoE, no trackers.
# Turbo grouped GEMM is what they are there to show, so the legacy kind is off.
add_proxy() {
  export GPU_MAX_HW_QUEUES=${GPU_MAX_HW_QUEUES:-4}
  export PRIMUS_DETERMINISTIC=${PRIMUS_DETERMINISTIC:-0}
  : "${LAYERS:=4}" "${TURBO_GG:=True}" "${PROFILE_STEP_START:=6}" "${PROFILE_STEP_END:=7}"
  if [ "$TURBO_GG" = True ]; then : "${LEGACY_GG:=False}"; fi
  begin
  add_sizes
  add_large_model
  add_features
  args+=(
    --cross_entropy_fusion_impl te --cross_entropy_loss_fusion True --pp_warmup True --mock_data True
    --disable_last_saving True --disable_wandb True --disable_tensorboard True
    --profile "$PROFILE" --profile_step_start "$PROFILE_STEP_START" --profile_step_end "$PROFILE_STEP_END"
  )
}

# What the runs of the synthetic family share: `run_family MoE1T moe_1T ARGUMENT...`. They are interleaved in four on 24
# stages of 96 nodes unless a script or its caller says otherwise.
run_family() {
  local name=$1 model=$2
  shift 2
  reads CHIP
  : "${CHIP:=MI355X}" "${MoE_Features:=3 4 5 6 7}"
  : "${NNODES:=96}" "${MBS:=1}" "${GBS:=1024}" "${PP:=24}" "${VPP:=4}"
  local experiment=examples/moe_package/configs/$CHIP/$model-pretrain-baseline.yaml
  [ -e "$experiment" ] || die "CHIP is '$CHIP'; there is no experiment of $model for it ($experiment)"
  export PRIMUS_VP=$VPP USING_AINIC=${USING_AINIC:-1}
  begin
  add_sizes
  add_switches
  add_features
  args+=(--pp_warmup True)
  launch "${name}_$CHIP" "$experiment" "$@"
}

# `launch NAME EXPERIMENT ARGUMENT...` starts the run. NAME is the first part of the run's name.
launch() {
  local name=$1 experiment=${EXP:-$2}
  shift 2
  mention_unread
  local program=${PRIMUS_CLI:-bin/primus-cli}
  [ -x "$program" ] || die "$program is not there; build it with 'make build', or name it with PRIMUS_CLI"
  local precision=BF16
  if [ "$FP8" = True ] || [[ $experiment == *-FP8-* ]]; then precision=FP8; fi
  local sizes="MBS${MBS}_GBS${GBS}_SEQ${SEQ_LENGTH}_TP${TP}_PP${PP}_VPP${VPP}_EP${EP}_CP${CP}"
  export PRIMUS_EXP_NAME=${PRIMUS_EXP_NAME:-${name}_${precision}_${sizes}_Features${MoE_Features// /-}}
  export DUMP_PP_DIR=${DUMP_PP_DIR:-./output/${PRIMUS_TEAM:-amd}/${PRIMUS_USER:-root}/$PRIMUS_EXP_NAME/pp_dump}

  local -a command=("$program")
  if [ "${DRY_RUN:-False}" = True ]; then command+=(--dry-run); fi
  case "$LAUNCH" in
    direct | container) command+=("$LAUNCH" --) ;;
    slurm) command+=(slurm srun -N "$NNODES" --) ;;
  esac
  command+=(train pretrain --config "$experiment" "${args[@]}")
  if [ -n "${EXPORT_CONFIG:-}" ]; then command+=(--export_config "$EXPORT_CONFIG"); fi
  command+=("$@")

  echo "experiment $experiment, features ${MoE_Features}, $NNODES x $GPUS_PER_NODE devices"
  if [ -n "${LOG_FILE:-}" ]; then
    mkdir -p "$(dirname "$LOG_FILE")"
    "${command[@]}" 2>&1 | tee -a "$LOG_FILE"
  else
    "${command[@]}"
  fi
}
