#include "train/settings_text.hpp"

#include <fmt/format.h>

#include <optional>
#include <type_traits>

#include "checkpoint/start_folder.hpp"
#include "model/parameters.hpp"
#include "train/external_profile.hpp"
#include "train/mlflow_options.hpp"
#include "train/options.hpp"
#include "train/parameter_groups.hpp"
#include "train/profiler.hpp"
#include "train/routing_trace.hpp"
#include "train/step_dumps.hpp"

namespace primus::train {
namespace {

/// Values behind each other, each with a separator.
class Text {
 public:
  template <typename... Values>
  void add(std::string_view what, const Values&... values) {
    text_ += what;
    (append(values), ...);
    text_ += '\n';
  }
  const std::string& text() const { return text_; }

 private:
  template <typename T>
  void append(const T& value) {
    text_ += ' ';
    if constexpr (std::is_enum_v<T>) {
      text_ += std::to_string(static_cast<int>(value));
    } else if constexpr (std::is_same_v<T, bool>) {
      text_ += value ? "yes" : "no";
    } else {
      text_ += fmt::format("{}", value);
    }
  }
  template <typename T>
  void append(const std::optional<T>& value) {
    if (!value) {
      text_ += " none";
    } else {
      append(*value);
    }
  }
  template <typename T>
  void append(const std::vector<T>& values) {
    text_ += " [";
    for (const T& value : values) append(value);
    text_ += " ]";
  }

  std::string text_;
};

void add_rope(const model::ModelSpec& spec, Text& out) {
  const model::RopeSpec& rope = spec.rope;
  out.add("rotation", rope.type);
  if (rope.type == model::RopeType::kNone) return;
  out.add("rope", rope.rotary_dim, rope.base, rope.interpolation, spec.rotated_layers);
  if (std::holds_alternative<model::GqaSpec>(spec.attention)) out.add("pairs", rope.pairs);
  if (rope.type == model::RopeType::kRope) return;
  out.add("scaled", rope.scaling_factor, rope.original_max_position);
  if (rope.type == model::RopeType::kYarn)
    out.add("yarn", rope.beta_fast, rope.beta_slow, rope.mscale, rope.mscale_all_dim, rope.rounded_range);
}

void add_attention(const model::ModelSpec& spec, Text& out) {
  if (const auto* mla = std::get_if<model::MlaSpec>(&spec.attention)) {
    out.add("mla", mla->num_heads, mla->q_lora_rank, mla->kv_lora_rank, mla->qk_head_dim, mla->qk_pos_emb_head_dim,
            mla->v_head_dim, mla->latent_norms, mla->output_gate);
    if (mla->indexer) {
      const model::IndexerSpec& indexer = *mla->indexer;
      out.add("indexer", indexer.num_heads, indexer.head_dim, indexer.top_k, indexer.loss_coefficient,
              indexer.norm_epsilon, indexer.hadamard, indexer.rectified, indexer.pairs, spec.choosing_layers);
      if (indexer.loss_coefficient > 0.0) out.add("of its loss", indexer.sparse_loss);
    }
  } else {
    const auto& gqa = std::get<model::GqaSpec>(spec.attention);
    out.add("gqa", gqa.num_heads, gqa.num_query_groups, gqa.head_dim, gqa.qk_norms, gqa.qk_unit_norms, gqa.qkv_bias,
            gqa.output_gate);
  }
  add_rope(spec, out);
  out.add("attention", spec.windows, spec.num_learned_positions, spec.sinks, spec.zero_sink, spec.attention_softcap);
  if (spec.qk_clip) out.add("qk_clip", spec.qk_clip->threshold, spec.qk_clip->alpha);
}

void add_compressed_attention(const model::CompressedAttentionSpec& attention, Text& out) {
  out.add("compressed", attention.num_heads, attention.head_dim, attention.q_lora_rank, attention.output_groups,
          attention.output_rank, attention.window, attention.sinks, attention.ratios);
  const bool has_entries =
      std::any_of(attention.ratios.begin(), attention.ratios.end(), [](std::int64_t ratio) { return ratio > 0; });
  if (!has_entries) return;
  const model::RopeSpec& rope = attention.entry_rope;
  out.add("entries", rope.type, rope.rotary_dim, rope.base, rope.pairs);
  if (rope.type == model::RopeType::kYarn)
    out.add("yarn", rope.scaling_factor, rope.original_max_position, rope.beta_fast, rope.beta_slow,
            rope.rounded_range);
  const model::IndexerSpec& indexer = attention.indexer;
  if (std::count(attention.ratios.begin(), attention.ratios.end(), model::CompressedAttentionSpec::kOverlapRatio) == 0)
    return;
  out.add("picked", indexer.num_heads, indexer.head_dim, indexer.top_k, indexer.loss_coefficient);
}

void add_streams(const model::ModelSpec& spec, Text& out) {
  if (!spec.hyper) return;
  out.add("streams", spec.hyper->num_streams, spec.hyper->sinkhorn_iterations, spec.hyper->epsilon,
          spec.hyper->norm_epsilon, spec.hyper->form, spec.hyper->first_scale);
}

void add_router(const model::RouterSpec& router, Text& out) {
  using enum model::RouterSpec::Assignment;
  out.add("router", router.num_experts, router.top_k, router.assignment, router.balance, router.forced_imbalance,
          router.input_jitter, router.logit_softcap, router.expert_bias);
  const model::RouterLosses& losses = router.losses;
  out.add("losses", losses.aux, losses.seq_aux, losses.global_aux, losses.z);
  if (router.assignment != kSinkhorn) out.add("scores", router.score_function, router.scaling_factor);
  if (router.assignment != kSinkhorn && router.score_function == model::ScoreFunction::kSoftmax)
    out.add("order", router.softmax_order);
  if (router.assignment == kQuantile) out.add("quantile", router.quantile_ema);
  out.add("groups", router.num_groups);
  if (router.num_groups) out.add("of groups", router.group_top_k, router.group_score);
  if (router.capacity) out.add("capacity", router.capacity->factor, router.capacity->drop, router.capacity->free_rows);
  if (router.expert_bias == model::RouterSpec::ExpertBias::kOff) return;
  if (const auto& rule = router.quantile_rule) {
    out.add("rule", rule->num_bins, rule->lowest, rule->highest, rule->centred, rule->update_interval, rule->ema);
  } else {
    out.add("sign", router.expert_bias_rate);
  }
}

void add_experts(const model::ModelSpec& spec, Text& out) {
  out.add("layers", spec.layers);
  if (!spec.moe) return;
  out.add("by token", spec.num_hash_layers);
  const model::MoeSpec& moe = *spec.moe;
  add_router(moe.router, out);
  out.add("experts", moe.ffn_hidden_size, moe.glu_interleave, moe.probabilities_on);
  out.add("shared", moe.shared_ffn_hidden_size);
  if (moe.shared_ffn_hidden_size > 0) out.add("of shared", moe.shared_gate, moe.shared_glu_interleave);
  if (moe.latent) out.add("latent", moe.latent->size, moe.latent->norm);
}

void add_model(const model::ModelSpec& spec, Text& out) {
  add_attention(spec, out);
  add_streams(spec, out);
  add_experts(spec, out);
  out.add("model", spec.hidden_size, spec.seq_length, spec.vocab_size, spec.padded_vocab_size,
          spec.dense_ffn_hidden_size, spec.mixers, spec.linear_bias, spec.norm, spec.norm_around_one,
          spec.residual_after_norm, spec.norm_epsilon, spec.output_weight);
  if (spec.num_layers_of(model::MixerKind::kShortConvolution) > 0) {
    out.add("short convolution", spec.short_convolution.kernel_size, spec.short_convolution.bias);
  }
  if (const model::GatedDeltaSpec& delta = spec.gated_delta; spec.num_layers_of(model::MixerKind::kGatedDelta) > 0) {
    out.add("delta net", delta.num_key_heads, delta.num_value_heads, delta.key_head_dim, delta.value_head_dim,
            delta.kernel_size);
  }
  if (const model::KimiDeltaSpec& delta = spec.kimi_delta; spec.num_layers_of(model::MixerKind::kKimiDelta) > 0) {
    const model::GatedDeltaSpec& heads = delta.heads;
    out.add("delta attention", heads.num_key_heads, heads.num_value_heads, heads.key_head_dim, heads.value_head_dim,
            heads.kernel_size, delta.lowest_decay, delta.full_rank_gate, delta.chunk_size);
  }
  if (spec.num_layers_of(model::MixerKind::kCompressed) > 0) add_compressed_attention(spec.compressed, out);
  out.add("depths", spec.num_mtp_layers);
  if (spec.num_mtp_layers > 0) {
    out.add("of depths", spec.mtp_loss_scale, spec.mtp_variant.detached, spec.mtp_variant.repeated,
            spec.mtp_variant.mixed_hidden_states);
  }
  const model::ActivationSpec& unit = spec.activation;
  out.add("unit", spec.mlp_gate, unit.function, unit.clamp, unit.linear_offset);
  if (unit.function == model::ActivationSpec::Function::kSitu) out.add("situ", unit.situ_beta, unit.situ_linear_beta);
  out.add("numerics", spec.dropout.hidden, spec.dropout.attention, spec.logits.scale, spec.logits.softcap);
  if (const auto& scaling = spec.width_scaling)
    out.add("mup", scaling->width, scaling->embedding, scaling->attention_power, scaling->base_head_dim);
  out.add("init", spec.init_shape, spec.init_std, spec.embedding_init_std);
}

void add_optimizer(const model::OptimizerSpec& optimizer, const model::ModelSpec& spec, Text& out) {
  using enum model::OptimizerKind;
  const bool is_muon = optimizer.kind == kMuon || optimizer.kind == kAdaptiveMuon;
  const model::OptimizerKind elements = is_muon ? optimizer.scalar_kind : optimizer.kind;
  out.add("optimizer", optimizer.kind, optimizer.width);
  if (elements == kAdam || elements == kSoap) out.add("adam", optimizer.beta1, optimizer.beta2, optimizer.epsilon);
  if (elements == kSgd) out.add("sgd", optimizer.sgd_momentum);
  if (elements == kLion) out.add("lion", optimizer.lion_beta1, optimizer.lion_beta2);
  if (is_muon) {
    const model::MuonSpec& muon = optimizer.muon;
    out.add("muon", optimizer.scalar_kind, muon.momentum, muon.nesterov, muon.split_qkv, muon.scale, muon.extra_scale,
            muon.coefficients, muon.num_steps);
  }
  // The parameters that decay, by the descriptors themselves.
  for (const model::ParameterDescriptor& parameter : model::training_parameters(spec)) {
    if (optimizer.decay(parameter) != parameter.decay) out.add("decays after all", parameter.name);
  }
}

void add_schedule(const LearningRateSchedule& schedule, Text& out) {
  out.add("lr", schedule.max_rate, schedule.style, schedule.warmup_samples);
  if (schedule.warmup_samples > 0) out.add("from", schedule.warmup_init);
  if (schedule.style == DecayStyle::kConstant) return;
  out.add("to", schedule.min_rate, schedule.decay_samples);
  if (schedule.style == DecayStyle::kWsd) out.add("wsd", schedule.wsd_style, schedule.wsd_decay_samples);
}

void add_data(const data::DataOptions& data, Text& out) {
  out.add("data", data.mock_data, data.train_data_path, data.valid_data_path, data.test_data_path, data.data_path,
          data.seed, data.vocab_size, data.eod, data.eod_mask_loss, data.reset_position_ids, data.reset_attention_mask,
          data.dataloader_type, data.requested.train);
  if (!data.data_path.empty()) out.add("split", data.split);
}

void add_evaluation(const RunOptions& options, Text& out) {
  out.add("evaluations", options.eval_iters);
  if (options.eval_iters == 0) return;
  out.add("evaluation", options.eval_interval, options.evaluation.global_batch_size,
          options.evaluation.micro_batch_size, options.evaluation.first_iteration, options.evaluation.extent,
          options.data.requested.valid, options.data.requested.test);
  for (const ValidationSet& set : options.validation_sets) out.add("held out", set.name, set.prefix);
}

void add_output(const RunOptions& options, const model::ModelSpec& spec, Text& out) {
  out.add("save", options.save.folder);
  if (options.save.folder) {
    out.add("saves", options.save.interval, options.save.retention.keep_every, options.save.retention.keep_last,
            options.save.writing, options.save.after_last_step, options.save.optimizer, options.save.generators,
            options.save.tokenizer);
  }
  if (const auto& short_lived = options.save.short_lived)
    out.add("short-lived", short_lived->folder, short_lived->interval);
  out.add("progress", options.progress_file);
  out.add("log", options.log_interval, options.log_avg_skip_iterations, options.params_norm, options.gradient_zeros,
          options.memory_interval, options.zone_timers, options.energy, options.largest_logit);
  if (spec.moe) out.add("layers", options.per_layer_log);
  const TensorBoardOptions& board = options.tensorboard;
  if (board.folder.empty()) return;
  out.add("board", board.folder, board.owner, board.interval, board.queue_size, board.iteration_time, board.batch_size,
          board.learning_rate, board.perplexity, board.memory, board.world_size, board.loss_scale);
}

void add_step(const engine::StepSettings& step, const model::ModelSpec& spec, Text& out) {
  const model::NumericPolicy& policy = step.policy;
  out.add("types", policy.parameters, policy.activations, policy.residual_type(), policy.logit_type(),
          policy.statistics, policy.main_gradients, policy.master, policy.first_moment, policy.second_moment);
  if (spec.moe) out.add("router", policy.router);
  out.add("step", step.loss_fusion, step.clip_grad, step.seed, step.recompute.layers);
  for (const model::RecomputeModule module : step.recompute.modules) {
    const bool is_of_experts = module == model::RecomputeModule::kMoe ||
                               module == model::RecomputeModule::kMoeActivation ||
                               module == model::RecomputeModule::kSharedExperts;
    if (spec.moe || !is_of_experts) out.add("made again", module);
  }
  const engine::LossScaleSettings& scale = step.loss_scale;
  out.add("scale", scale.kind, scale.initial, scale.smallest);
  if (scale.kind == engine::LossScaleSettings::Kind::kDynamic) out.add("moves", scale.window, scale.hysteresis);
  out.add("launch", step.launch, step.after_nonfinite);
  out.add("rerun", step.rerun.mode, step.rerun.injection_rate);
  if (step.rerun.injection_rate > 0) out.add("injected", step.rerun.injection);
}

void add_loop(const RunOptions& options, Text& out) {
  out.add("loop", options.run_folder, options.seed, options.train_iters, options.global_batch_size,
          options.micro_batch_size, options.passed_over, options.rejected_results, options.phases, options.kind,
          options.loss_watch, options.gradient_watch, options.exit_interval, options.exit_after_s, options.on_nonfinite,
          options.determinism, options.kernels.experts, options.kernels.attention, options.documents,
          options.read_back);
  for (std::int64_t samples = 0; samples < options.train_samples(); samples += options.global_batch_size)
    out.add("size", options.batch_sizes.at(samples));
  out.add("decay", options.weight_decay.style, options.weight_decay.start, options.weight_decay.end);
}

/// What loading asks of the experiment itself, as train/start.cpp and train/load_state.cpp do.
void add_start(const config::Experiment& experiment, Text& out) {
  const auto key = [&](std::string_view name) { out.add(name, to_text(experiment.setting(name).value)); };
  for (const char* name :
       {"load", "pretrained_checkpoint", "ckpt_step", "override_ckpt_iteration", "on_damaged_checkpoint",
        "moe_use_upcycling", "override_opt_param_scheduler", "use_checkpoint_opt_param_scheduler"})
    key(name);
  out.add("continues", checkpoint::continues_itself(experiment));
  if (!experiment.is_null("load"))
    for (const char* name : {"finetune", "no_load_optim", "no_load_rng", "exit_on_missing_checkpoint"}) key(name);
  if (!experiment.is_null("load") || !experiment.is_null("pretrained_checkpoint")) key("load_main_params_from_ckpt");
  if (experiment.get_bool("moe_use_upcycling")) key("moe_upcycling_granularity");
}

void add_mlflow(const config::Experiment& experiment, Text& out) {
  const auto mlflow = mlflow_options(experiment);
  if (!mlflow) return;
  out.add("mlflow", mlflow->names.store.string(), mlflow->names.experiment, mlflow->names.run, mlflow->speeds,
          mlflow->logs, mlflow->traces);
}

/// What a run writes of single steps.
void add_observers(const config::Experiment& experiment, const model::ModelSpec& spec, Text& out) {
  const ExternalProfileOptions external = external_profile_options(experiment, 0);
  out.add("external profile", external.ranges, external.memory_snapshot.value_or("none"));
  if (external.window) {
    out.add("external window", external.window->first_step, external.window->end_step, external.window->shapes);
  }
  if (const auto profile = profile_options(experiment, 0)) {
    out.add("profile", profile->first_step, profile->end_step, profile->activities, profile->shapes, profile->format,
            profile->graph, profile->folder);
  }
  const DumpOptions dumps = dump_options(experiment);
  for (std::size_t i = 0; i < kNumDumps; ++i) {
    const bool is_of_experts = static_cast<Dump>(i) == Dump::kExpertLoads;
    if (spec.moe || !is_of_experts) out.add("dump", dumps.interval[i]);
  }
  if (!spec.moe) return;
  if (const auto trace = routing_trace_options(experiment, static_cast<int>(spec.num_layers()))) {
    out.add("routing", trace->folder.string(), trace->num_steps, trace->logits, trace->hidden_states, trace->weights);
  }
}

}  // namespace

std::string settings_text(const config::Experiment& experiment) {
  const RunOptions options = run_options(experiment);
  const model::ModelSpec spec = model::build_model_spec(experiment);
  Text out;
  add_model(spec, out);
  add_optimizer(options.optimizer, spec, out);
  add_schedule(options.learning_rate, out);
  if (options.end_learning_rate) add_schedule(*options.end_learning_rate, out);
  add_loop(options, out);
  add_step(options.step, spec, out);
  add_evaluation(options, out);
  add_data(options.data, out);
  add_output(options, spec, out);
  add_start(experiment, out);
  add_observers(experiment, spec, out);
  add_mlflow(experiment, out);
  out.add("groups", parameter_groups_file(experiment));
  for (const auto& [name, value] : experiment.env) out.add(name, value);
  return out.text();
}

}  // namespace primus::train
