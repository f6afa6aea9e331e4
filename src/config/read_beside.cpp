#include "config/read_beside.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.hpp"
#include "base/text.hpp"
#include "config/parse.hpp"

namespace primus::config {
namespace {

// Switches stand apart, of which one is enough; what must hold together is joined: "fp8 fp4",
// "optimizer=muon|dist_muon", "use_mup&bf16=true", "eval_iters!=0".
struct Row {
  std::string_view switches;
  std::string_view details;
};

constexpr std::string_view kLoad = "load pretrained_checkpoint auto_continue_train";
// Latent attention may do without positions.
constexpr std::string_view kRotated =
    "position_embedding_type=rope|mrope|yarn&multi_latent_attention=false "
    "position_embedding_type=rope|mrope|yarn&mla_use_nope=false";
constexpr std::string_view kYarn =
    "position_embedding_type=yarn&multi_latent_attention=false position_embedding_type=yarn&mla_use_nope=false "
    "rope_type=yarn rope_type=null&mla_use_nope=false";
constexpr std::string_view kMuon = "optimizer=muon|dist_muon|adaptive_muon";
constexpr std::string_view kFsdp = "use_megatron_fsdp use_custom_fsdp";
constexpr std::string_view kLinear = "experimental_attention_variant=gdn|gdn2|gated_delta_net|kda";
constexpr std::string_view kZeroBubble = "patch_zero_bubble zero_bubble_v_schedule enable_1f1b_v";

constexpr Row kRows[] = {
    // Attention and positions.
    {"multi_latent_attention", "kv_lora_rank qk_head_dim v_head_dim mla_use_nope mla_use_output_gate"},
    {"multi_latent_attention model_type=deepseek_v4", "q_lora_rank qk_pos_emb_head_dim"},
    {"multi_latent_attention=false", "group_query_attention kv_channels"},
    {"group_query_attention", "num_query_groups"},
    {"position_embedding_type=rope|mrope&multi_latent_attention=false "
     "position_embedding_type=rope|mrope&mla_use_nope=false",
     "rope_type use_rope_scaling"},
    {kRotated, "rotary_base rotary_percent rotary_seq_len_interpolation_factor no_rope_freq"},
    {"position_embedding_type=rope|mrope|yarn&multi_latent_attention=false", "rotary_interleaved"},
    {kYarn, "rotary_scaling_factor beta_fast beta_slow mscale mscale_all_dim yarn_correction_range_round_to_int"},
    {"position_embedding_type=yarn&multi_latent_attention=false position_embedding_type=yarn&mla_use_nope=false "
     "rope_type=yarn rope_type=null&mla_use_nope=false use_rope_scaling",
     "original_max_position_embeddings"},
    {"window_size", "window_attn_skip_freq"},
    {"add_bias_linear&swiglu=false&quick_geglu=false&squared_relu=false&openai_gelu=false", "bias_gelu_fusion"},
    // Architectures.
    {kLinear,
     "linear_attention_freq linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads "
     "linear_num_value_heads"},
    {"experimental_attention_variant=gdn|gdn2|gated_delta_net",
     "gdp_num_householder gdp_num_chunk_states_to_recompute"},
    {"experimental_attention_variant=kda", "kda_gate_lower_bound kda_chunk_size kda_use_full_rank_gate"},
    {"experimental_attention_variant=dsa",
     "dsa_indexer_n_heads dsa_indexer_head_dim dsa_indexer_topk dsa_indexer_topk_freq dsa_indexer_loss_coeff "
     "dsa_indexer_k_norm_epsilon dsa_indexer_rope_interleaved dsa_indexer_rotate_activation "
     "dsa_indexer_scoring_relu"},
    {"experimental_attention_variant=dsa&dsa_indexer_topk_freq!=1", "dsa_indexer_skip_topk_offset"},
    {"experimental_attention_variant=dsa&dsa_indexer_loss_coeff", "dsa_indexer_use_sparse_loss"},
    {"model_type=deepseek_v4", "hybrid_attention_enabled attn_sliding_window o_groups o_lora_rank"},
    {"hybrid_attention_enabled", "compress_ratios"},
    {"compress_ratios", "compress_rope_theta index_topk index_head_dim index_n_heads v4_indexer_distill_loss_coeff"},
    {"hc_mult", "hc_use_sinkhorn hc_eps"},
    {"hc_mult&hc_use_sinkhorn", "hc_sinkhorn_iters"},
    {"hc_mult&mtp_num_layers", "mtp_use_separate_hc_head"},
    {"enable_mhc_connections",
     "mhc_num_residual_streams mhc_sinkhorn_iterations mhc_init_gating_factor mhc_recompute_layer_num"},
    {"moe_latent_size", "latent_moe_use_norm"},
    {"activation_situ_beta", "activation_situ_linear_beta"},
    {"hybrid_layer_pattern hybrid_override_pattern is_hybrid_model",
     "mamba_state_dim mamba_head_dim mamba_num_groups mamba_num_heads mamba_training_ssm_states_dtype"},
    {"lfm_layer_types", "conv_L_cache conv_bias"},
    {"mtp_num_layers", "mtp_layer_type mtp_loss_scaling_factor mtp_detach_heads mtp_use_repeated_layer mtp_hsm"},
    {"use_rope_scaling", "rope_scaling_factor"},
    {"qk_clip", "qk_clip_threshold qk_clip_alpha"},
    {"use_mup", "mup_base_hidden_size mup_base_head_dim mup_attn_scale_power mup_embedding_mult mup_output_mult"},
    {"use_sink_attention", "sink_sliding_window sink_window_even_layers_only"},
    // Experts.
    {"num_experts",
     "num_hash_layers moe_layer_freq moe_ffn_hidden_size moe_shared_expert_intermediate_size moe_router_topk "
     "moe_router_load_balancing_type moe_router_dtype moe_per_layer_logging moe_router_num_groups "
     "moe_router_group_topk moe_router_enable_expert_bias moe_router_force_load_balancing moe_router_force_biased "
     "moe_z_loss_coeff moe_input_jitter_eps moe_expert_capacity_factor moe_layer_recompute moe_use_upcycling "
     "moe_apply_probs_on_input moe_mlp_glu_interleave_size moe_latent_size router_logit_softcapping "
     "expert_model_parallel_size expert_tensor_parallel_size moe_token_dispatcher_type "
     "moe_routing_trace_path save_tokens_per_expert_interval"},
    {"moe_shared_expert_intermediate_size", "moe_shared_expert_gate moe_shared_expert_glu_interleave_size"},
    {"moe_router_num_groups", "moe_router_group_score"},
    {"moe_router_force_load_balancing", "moe_router_force_load_balancing_type"},
    {"moe_router_load_balancing_type=aux_loss|seq_aux_loss|global_aux_loss", "moe_aux_loss_coeff"},
    // Sinkhorn's choice has probabilities of its own.
    {"moe_router_load_balancing_type!=sinkhorn", "moe_router_score_function moe_router_topk_scaling_factor"},
    {"moe_router_score_function=softmax", "moe_router_pre_softmax"},
    {"moe_router_enable_expert_bias", "moe_router_bias_update_rule"},
    {"moe_router_enable_expert_bias&moe_router_bias_update_rule=sign", "moe_router_bias_update_rate"},
    {"moe_router_enable_expert_bias&moe_router_bias_update_rule=quantile",
     "quantile_balancing_num_bins quantile_balancing_margin_min quantile_balancing_margin_max "
     "quantile_balancing_center_bias quantile_balancing_update_interval quantile_balancing_ema_decay"},
    {"moe_router_load_balancing_type=quantile_balancing", "moe_router_quantile_balancing_ema"},
    {"moe_expert_capacity_factor", "moe_token_drop_policy"},
    {"moe_token_dispatcher_type=flex", "moe_flex_dispatcher_backend moe_flex_dispatcher_num_sms"},
    {"moe_enable_deepep use_turbo_deepep moe_token_dispatcher_type=flex", "moe_deepep_num_sms"},
    {"moe_flex_dispatcher_backend=hybridep",
     "moe_hybridep_num_sms moe_hybridep_num_sms_preprocessing moe_hybridep_num_blocks_permute "
     "moe_hybridep_num_blocks_unpermute moe_hybridep_pad_uneven_dispatch_inputs moe_permute_fusion_into_hybridep"},
    {"moe_flex_dispatcher_backend=ncclep", "moe_ncclep_zero_copy"},
    {"use_turbo_deepep", "turbo_deepep_num_cu turbo_deepep_use_comm_stream"},
    {"use_turbo_mega_moe", "turbo_mega_moe_precision"},
    {"moe_use_upcycling", "moe_upcycling_granularity"},
    {"moe_routing_trace_path",
     "moe_routing_trace_max_training_iters moe_routing_trace_capture_logits moe_routing_trace_capture_hidden_states "
     "moe_routing_trace_dump_weights"},
    {"moe_paged_stash",
     "moe_paged_stash_page_size moe_paged_stash_buffer_size_factor_cuda moe_paged_stash_buffer_size_factor_cpu"},
    // Number types.
    {"fp16", "loss_scale"},
    {"fp16&loss_scale=null", "initial_loss_scale min_loss_scale loss_scale_window hysteresis"},
    {"bf16=true fp16", "logit_dtype"},
    {"bf16=true&use_precision_aware_optimizer=false fp16&use_precision_aware_optimizer=false", "grad_reduce_in_bf16"},
    {"fp8 fp4", "first_last_layers_bf16 moe_router_padding_for_quantization"},
    {"first_last_layers_bf16", "num_layers_at_start_in_bf16 num_layers_at_end_in_bf16"},
    {"fp8",
     "fp8_recipe fp8_margin fp8_interval fp8_amax_history_len fp8_amax_compute_algo fp8_wgrad "
     "no_fp8_weight_transpose_cache fp8_output_proj fp8_quantizer_factory"},
    {"fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag"},
    {"fp4", "fp4_recipe fp4_use_native_te_autocast fp4_quantizer_factory"},
    {"weight_deosc", "weight_deosc_period weight_deosc_ratio weight_deosc_start_step weight_deosc_log_freq"},
    // Optimizer and schedule.
    {"optimizer=adam|soap muon_scalar_optimizer=adam", "adam_beta1 adam_beta2 adam_eps"},
    {"optimizer=sgd", "sgd_momentum"},
    {"qk_layernorm&multi_latent_attention=false qk_layernorm&q_lora_rank model_type=deepseek_v4",
     "apply_wd_to_qk_layernorm no_weight_decay_cond_type"},
    {"weight_decay_incr_style=constant", "weight_decay"},
    {"lr_decay_style!=constant", "min_lr"},
    {"lr_decay_style=WSD", "lr_wsd_decay_style lr_wsd_decay_iters lr_wsd_decay_samples"},
    {"lr_decay_style!=constant lr_warmup_fraction", "lr_decay_iters lr_decay_samples"},
    {"lr_warmup_iters lr_warmup_samples lr_warmup_fraction", "lr_warmup_init"},
    {"eval_iters!=0", "eval_interval full_validation eval_global_batch_size eval_micro_batch_size start_eval_at_iter"},
    {kMuon,
     "muon_extra_scale_factor muon_scale_mode muon_num_ns_steps muon_use_nesterov "
     "muon_split_qkv muon_momentum muon_coefficient_type muon_scalar_optimizer"},
    {"optimizer=lion muon_scalar_optimizer=lion", "lion_beta1 lion_beta2"},
    {"decoupled_lr", "decoupled_min_lr"},
    {"multiple_validation_sets", "validation_set_names"},
    // Parallelism and communication.
    {"tensor_model_parallel_size", "sequence_parallel"},
    {"num_virtual_stages_per_pipeline_rank num_layers_per_virtual_pipeline_stage virtual_pipeline_model_parallel_size "
     "pipeline_model_parallel_layout",
     "microbatch_group_size_per_vp_stage"},
    {"tensor_model_parallel_size", "distribute_saved_activations"},
    {"context_parallel_size", "cp_comm_type"},
    {"hybrid_context_parallel", "max_seqlen_per_dp_cp_rank"},
    {"tp_comm_overlap",
     "tp_comm_overlap_cfg tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_overlap_rs_dgrad tp_comm_split_ag "
     "tp_comm_split_rs tp_comm_bulk_wgrad tp_comm_bulk_dgrad"},
    {"use_torch_fsdp2",
     "use_fsdp2_fp32_param_optimizer use_fsdp2_bf16_master_weight_optimizer torch_fsdp2_reshard_after_forward"},
    {kFsdp,
     "data_parallel_sharding_strategy keep_fp8_transpose_cache_when_using_custom_fsdp "
     "suggested_communication_unit_size megatron_fsdp_version megatron_fsdp_main_params_dtype "
     "megatron_fsdp_main_grads_dtype megatron_fsdp_grad_comm_dtype megatron_fsdp_enable_fine_grained_param_gather "
     "megatron_fsdp_max_pool_double_buffer fsdp_double_buffer fsdp_db_use_persist_buf_on_alloc_fail "
     "fsdp_manual_registration enable_full_sharding_in_hsdp outer_dp_sharding_strategy strict_fsdp_dtensor_load"},
    {"tensor_parallel_num_weight_shards expert_tensor_parallel_num_weight_shards",
     "gtp_remat_opt_in_modules gtp_remat_nccl_ub gtp_expert_remat_nccl_ub "
     "gtp_remat_reduce_scatter_with_fp32_accumulation"},
    {"use_sharp", "sharp_enabled_group"},
    {"optimizer_cpu_offload", "optimizer_offload_fraction"},
    {"enable_odc",
     "odc_phase odc_grad_spike_threshold odc_p2p_backend odc_mori_init odc_max_buffer_size odc_rocshmem_gda "
     "odc_rocshmem_lib odc_gda_rs_blocks odc_gda_pipe odc_gda_defer_reduce odc_gda_warmup_mode odc_gda_stride_bytes"},
    {"patch_primus_pipeline",
     "pp_algorithm communication_method debug_scheduler_table pp_max_mem pp_cost_f pp_cost_b pp_cost_w"},
    {"offload", "offload_ops"},
    {kZeroBubble,
     "enable_zb_runtime pre_communication_optimization zero_bubble_pipeline_timers_start_iter "
     "zero_bubble_pipeline_timers_end_iter zero_bubble_max_pending_backward "
     "zero_bubble_adaptive_memory_limit_percentile enable_optimizer_post_validation enable_exactly_numeric_match "
     "enable_zero_bubble zero_bubble_v_schedule_mem_setup allow_padding_num_layers profile_memory_iter "
     "interleave_group_size offload_chunk_num offload_time auto_offload_time offload_overlap_sr num_seq_splits "
     "cpu_offload"},
    {"cpu_offloading_num_layers", "cpu_offloading_retain_pinned_cpu_buffers"},
    {"fine_grained_activation_offloading",
     "offload_modules min_offloaded_tensor_size activation_offload_fraction delta_offload_bytes_across_pp_ranks "
     "fine_grained_offloading_max_inflight_offloads delay_offload_until_cuda_graph"},
    // Data and tokenizers.
    {"padded_vocab_size=null", "pad_vocab_size"},
    {"padded_vocab_size=null&pad_vocab_size=true", "make_vocab_size_divisible_by"},
    {"data_path data_args_path", "split"},
    {"tokenizer_type!=null|NullTokenizer|ByteTokenizer", "vocab_file merge_file special_tokens"},
    {"tokenizer_type=NullTokenizer", "null_tokenizer_eod_id"},
    {"tokenizer_model", "save_tokenizer_assets"},
    {"tokenizer_type=TikTokenizer", "tiktoken_pattern tiktoken_num_special_tokens tiktoken_special_tokens"},
    {"sft stage",
     "sft_tokenizer_prompt_format sft_dataset_name sft_dataset_split sft_conversation_format "
     "sft_bridge_compat_inline_bos sft_sanitize_nan_grads enable_fused_linear_ce"},
    {"enable_packed_sequences", "use_packed_attention"},
    {"enable_odc_lb_mini", "lb_mini_max_token_len lb_mini_cost_model"},
    {"logits_save_dir", "logits_save_dtype logits_save_top_k logits_save_top_p logits_save_top_p_min_k"},
    {"logits_load_dir",
     "logits_load_kd_loss_alpha logits_load_decode_threads logits_load_prefetch_factor logits_load_msc_prefetch_depth "
     "logits_load_ignore_errors"},
    // Checkpoints.
    {"save", "ckpt_fully_parallel_save ckpt_fully_parallel_save_process_group"},
    {kLoad,
     "ckpt_fully_parallel_load "
     "ckpt_fully_parallel_load_process_group ckpt_fully_parallel_load_exchange_algo "
     "ckpt_fully_parallel_load_per_rank_objects"},
    {"load", "no_load_optim no_load_rng finetune exit_on_missing_checkpoint"},
    {"load pretrained_checkpoint", "load_main_params_from_ckpt"},
    {"use_checkpoint_args", "use_mp_args_from_checkpoint_args use_tokenizer_model_from_checkpoint_args"},
    {"non_persistent_save_interval", "non_persistent_ckpt_type"},
    {"non_persistent_save_interval&non_persistent_ckpt_type=global", "non_persistent_global_ckpt_dir"},
    {"non_persistent_save_interval&non_persistent_ckpt_type=local", "non_persistent_local_ckpt_dir"},
    {"recompute_granularity=full", "recompute_method recompute_num_layers recompute_layer_ids"},
    {"recompute_granularity=selective", "recompute_modules"},
    // Faults and restarts.
    {"replication", "replication_jump replication_factor"},
    {"adlr_autoresume", "adlr_autoresume_interval"},
    {"error_injection_rate", "error_injection_type"},
    {"log_straggler", "disable_straggler_on_startup straggler_ctrlr_port straggler_minmax_count"},
    {"enable_ft_package", "calc_ft_timeouts ft_num_warmup_iters"},
    {"inprocess_restart",
     "inprocess_active_world_size inprocess_granularity inprocess_max_iterations inprocess_barrier_timeout "
     "inprocess_completion_timeout inprocess_hard_timeout inprocess_soft_timeout inprocess_heartbeat_interval "
     "inprocess_heartbeat_timeout inprocess_last_call_wait inprocess_monitor_process_interval "
     "inprocess_monitor_thread_interval inprocess_progress_watchdog_interval inprocess_termination_grace_time "
     "inprocess_empty_cuda_cache"},
    {"fault_injector_ranks fault_injector_num_ranks",
     "fault_injector_fault_types fault_injector_fault_probabilities fault_injector_fault_delay "
     "fault_injector_mtti_seconds fault_injector_offset_seconds fault_injector_delay_start_iteration "
     "fault_injector_seed"},
    // Logs and profiles.
    {"disable_tensorboard=false",
     "tensorboard_dir tensorboard_log_interval tensorboard_queue_size log_timers_to_tensorboard "
     "log_batch_size_to_tensorboard log_learning_rate_to_tensorboard log_validation_ppl_to_tensorboard "
     "log_memory_to_tensorboard log_world_size_to_tensorboard log_loss_scale_to_tensorboard"},
    {"disable_mlflow=false",
     "mlflow_run_name mlflow_experiment_name mlflow_upload_traces mlflow_upload_logs "
     "mlflow_upload_performance_metrics"},
    {"profile", "use_pytorch_profiler profile_ranks profile_step_start profile_step_end"},
    {"profile&use_pytorch_profiler",
     "disable_profiler_activity_cpu torch_profiler_record_shapes torch_profiler_use_gzip "
     "pytorch_profiler_collect_chakra"},
    {"profile&use_pytorch_profiler=false", "record_shapes"},
    {"record_memory_history", "memory_snapshot_path"},
};

// Views into the table, whose texts live as long as the program.
std::vector<std::string_view> words_of(std::string_view text, char separator) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

Condition condition_of(std::string_view word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string_view::npos) return {.key = find_key(word)->name};
  const bool is_negated = word[equals - 1] == '!';
  return {.key = find_key(word.substr(0, equals - (is_negated ? 1 : 0)))->name,
          .holds = is_negated ? Condition::Holds::kNoneOf : Condition::Holds::kOneOf,
          .values = split(word.substr(equals + 1), '|')};
}

using Index = std::unordered_map<std::string_view, std::vector<Switch>>;

void add_row(const Row& row, Index& index) {
  std::vector<Switch> switches;
  for (const std::string_view word : words_of(row.switches, ' ')) {
    Switch conditions;
    for (const std::string_view condition : words_of(word, '&')) conditions.push_back(condition_of(condition));
    switches.push_back(std::move(conditions));
  }
  for (const std::string_view detail : words_of(row.details, ' ')) {
    PRIMUS_CHECK(index.emplace(detail, switches).second, "{} is a detail of two rows", detail);
  }
}

// The switches of every detail.
const Index& switches_by_detail() {
  static const Index index = [] {
    Index built;
    for (const Row& row : kRows) add_row(row, built);
    return built;
  }();
  return index;
}

// Off is what every key takes that asks for nothing, and the default.
bool is_off(const Key& key, const Value& value) {
  return value.is_null() || value == Value{false} || value == Value{std::int64_t{0}} || value == Value{0.0} ||
         value == default_value(key);
}

bool is_one_of(const Value& value, const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    const auto* list = std::get_if<Value::List>(&value.data);
    const Value wanted = parse_value(word);
    return list ? std::find(list->begin(), list->end(), wanted) != list->end() : wanted == value;
  });
}

bool holds(const Condition& condition, const Experiment& experiment) {
  const Key& key = *find_key(condition.key);
  const Value& value = experiment.setting(key.name).value;
  if (!is_read(key, experiment)) return false;
  switch (condition.holds) {
    case Condition::Holds::kOn:
      return !is_off(key, value);
    case Condition::Holds::kOneOf:
      return is_one_of(value, condition.values);
    case Condition::Holds::kNoneOf:
      return !is_one_of(value, condition.values);
  }
  return false;
}

bool is_on(const Switch& conditions, const Experiment& experiment) {
  return std::all_of(conditions.begin(), conditions.end(),
                     [&](const Condition& condition) { return holds(condition, experiment); });
}

std::string condition_text(const Condition& condition) {
  std::string words;
  for (const std::string& value : condition.values) words += (words.empty() ? "" : "|") + value;
  switch (condition.holds) {
    case Condition::Holds::kOn:
      break;
    case Condition::Holds::kOneOf:
      return words == "true" ? std::string(condition.key) : fmt::format("{} {}", condition.key, words);
    case Condition::Holds::kNoneOf:
      return fmt::format("{} other than {}", condition.key, words);
  }
  return std::string(condition.key);
}

}  // namespace

const std::vector<Switch>& switches_of(const Key& key) {
  static const std::vector<Switch> none;
  const auto found = switches_by_detail().find(key.name);
  return found == switches_by_detail().end() ? none : found->second;
}

std::vector<std::string_view> details_of(const Key& key) {
  std::vector<std::string_view> names;
  for (const auto& [detail, switches] : switches_by_detail()) {
    const bool is_its_switch = std::any_of(switches.begin(), switches.end(), [&](const Switch& conditions) {
      return std::any_of(conditions.begin(), conditions.end(),
                         [&](const Condition& condition) { return condition.key == key.name; });
    });
    if (is_its_switch) names.push_back(detail);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool is_read(const Key& key, const Experiment& experiment) {
  const std::vector<Switch>& switches = switches_of(key);
  return switches.empty() ||
         std::any_of(switches.begin(), switches.end(), [&](const Switch& one) { return is_on(one, experiment); });
}

bool has_planned_switch(const Key& key, const Experiment& experiment) {
  const auto is_planned = [&](const Condition& condition) {
    const Key& row = *find_key(condition.key);
    return !is_working_value(row, experiment.setting(row.name).value);
  };
  const std::vector<Switch>& switches = switches_of(key);
  return std::any_of(switches.begin(), switches.end(), [&](const Switch& one) {
    return is_on(one, experiment) && std::any_of(one.begin(), one.end(), is_planned);
  });
}

std::string switches_text(const Key& key) {
  std::string text;
  for (const Switch& conditions : switches_of(key)) {
    if (!text.empty()) text += " or ";
    for (std::size_t i = 0; i < conditions.size(); ++i)
      text += (i == 0 ? "" : i == 1 ? " with " : ", ") + condition_text(conditions[i]);
  }
  return text;
}

std::string unread_text(const Key& key) {
  return fmt::format("read only beside {}", switches_text(key));
}

}  // namespace primus::config
