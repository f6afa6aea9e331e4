#include "train/options.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "base/text.hpp"
#include "config/number_list.hpp"
#include "config/parse.hpp"
#include "config/tokenizer_facts.hpp"
#include "data/blended_dataset.hpp"
#include "data/tokenizer.hpp"
#include "train/rejected_results.hpp"

namespace primus::train {
namespace {

/// The end-of-document id; the tokenizer's files are read only where the run needs it.
std::int64_t end_of_document(const config::Experiment& experiment) {
  const std::string type = experiment.get_optional_string("tokenizer_type").value_or("");
  if (type == "NullTokenizer") {
    if (const auto eod = experiment.get_optional_int("null_tokenizer_eod_id")) return *eod;
  }
  if (!config::has_tokenizer_files(type)) {
    return data::make_plain_tokenizer({.type = type, .model = "", .vocab_size = experiment.get_int("vocab_size")})
        ->eod();
  }
  constexpr std::array<std::string_view, 3> kReaders = {"eod_mask_loss", "reset_position_ids", "reset_attention_mask"};
  const auto* const reader =
      std::find_if(kReaders.begin(), kReaders.end(), [&](std::string_view key) { return experiment.get_bool(key); });
  if (reader == kReaders.end()) return data::kNoEod;
  const config::TokenizerFiles files = config::find_tokenizer_files(config::tokenizer_names(experiment));
  const auto eod = files.kind == config::TokenizerKind::kNone ? std::nullopt : config::read_tokenizer_facts(files).eod;
  if (eod) return *eod;
  throw ConfigError({{.key = std::string(*reader),
                      .message = "needs the id that ends a document, which the tokenizer's files do not tell",
                      .expected = "an eos_token in a tokenizer_config.json beside the tokenizer",
                      .found = experiment.get_optional_string("tokenizer_model").value_or("")}});
}

data::DataOptions data_options(const config::Experiment& experiment, const RunOptions& options) {
  data::DataOptions data;
  data.data_path = experiment.get_strings("data_path");
  data.split = experiment.get_optional_string("split").value_or(data.split);
  data.train_data_path = experiment.get_strings("train_data_path");
  data.valid_data_path = experiment.get_strings("valid_data_path");
  data.test_data_path = experiment.get_strings("test_data_path");
  data.mock_data = experiment.get_bool("mock_data");
  data.seed = static_cast<std::int64_t>(options.seed);
  data.seq_length = options.seq_length;
  data.requested = data::requested_samples({.train_iters = options.train_iters,
                                            .train_samples = options.batch_sizes.samples_of(options.train_iters),
                                            .global_batch_size = options.evaluation.global_batch_size,
                                            .eval_interval = options.eval_interval.value_or(0),
                                            .eval_iters = options.eval_iters});
  if (options.evaluation.extent == EvaluationOptions::Extent::kWholeSplit) data.requested.valid.reset();  // one epoch
  data.vocab_size = experiment.get_int("vocab_size");
  data.eod = end_of_document(experiment);
  data.eod_mask_loss = experiment.get_bool("eod_mask_loss");
  data.reset_position_ids = experiment.get_bool("reset_position_ids");
  data.reset_attention_mask = experiment.get_bool("reset_attention_mask");
  data.dataloader_type = experiment.get_optional_string("dataloader_type").value_or("single") == "cyclic"
                             ? data::DataloaderType::kCyclic
                             : data::DataloaderType::kSingle;
  return data;
}

EvaluationOptions evaluation_options(const config::Experiment& experiment) {
  const std::int64_t micro = experiment.get_int("micro_batch_size");
  return {.global_batch_size = experiment.get_optional_int("eval_global_batch_size")
                                   .value_or(experiment.get_int("global_batch_size") / micro * micro),
          .micro_batch_size = experiment.get_optional_int("eval_micro_batch_size").value_or(micro),
          .first_iteration = experiment.get_optional_int("start_eval_at_iter").value_or(0),
          .extent = experiment.get_bool("full_validation") ? EvaluationOptions::Extent::kWholeSplit
                                                           : EvaluationOptions::Extent::kBatches};
}

engine::RerunSettings rerun_settings(const config::Experiment& experiment, std::uint64_t seed) {
  const std::string mode = experiment.get_string("rerun_mode");
  const std::string injection = experiment.get_string("error_injection_type");
  return {.mode = mode == "validate_results" ? engine::RerunMode::kValidate
                  : mode == "report_stats"   ? engine::RerunMode::kReport
                                             : engine::RerunMode::kDisabled,
          .injection_rate = experiment.get_int("error_injection_rate"),
          .injection = injection == "correct_result"    ? engine::InjectedError::kCorrectResult
                       : injection == "transient_error" ? engine::InjectedError::kTransientError
                                                        : engine::InjectedError::kPersistentError,
          .seed = seed};
}

std::vector<std::int64_t> integers(const config::Experiment& experiment, const char* key) {
  std::vector<std::int64_t> numbers;
  for (const double number : config::numbers_of(experiment.setting(key).value)) numbers.push_back(std::llround(number));
  return numbers;
}

/// The last steps of phases, from text such as "100,200".
std::vector<std::int64_t> phase_ends(const config::Experiment& experiment) {
  const std::string text = experiment.get_optional_string("phase_transition_iterations").value_or("");
  std::vector<std::int64_t> ends;
  if (text.empty()) return ends;
  for (const std::string& word : split(text, ',')) {
    const auto step = config::parse_int(trim(word));
    if (!step || *step < 1 || (!ends.empty() && *step <= ends.back())) {
      throw ConfigError({{.key = "phase_transition_iterations",
                          .message = "is no list of steps",
                          .expected = "ascending numbers from 1 on, as in 1000,5000",
                          .found = text}});
    }
    ends.push_back(*step);
  }
  return ends;
}

std::vector<ValidationSet> validation_sets(const config::Experiment& experiment) {
  std::vector<ValidationSet> sets;
  if (!experiment.get_bool("multiple_validation_sets")) return sets;
  const std::vector<std::string> written = experiment.get_strings("valid_data_path");
  const auto blend = written.empty() ? data::BlendSpec{} : data::parse_blend(written, "valid_data_path");
  const std::vector<std::string> names = experiment.get_strings("validation_set_names");
  if (blend.prefixes.empty() || blend.weights || (!names.empty() && names.size() != blend.prefixes.size())) {
    throw ConfigError(
        {{.key = "multiple_validation_sets",
          .message =
              "needs the prefixes of the sets (mock_data has none), without weights, and a name for each or none",
          .expected = "valid_data_path: [a_text_document, b_text_document]",
          .found = fmt::format("{} prefixes, {} names", blend.prefixes.size(), names.size())}});
  }
  for (std::size_t i = 0; i < blend.prefixes.size(); ++i)
    sets.push_back({names.empty() ? std::to_string(i) : names[i], blend.prefixes[i]});
  return sets;
}

Watch watch(const config::Experiment& experiment, const char* key) {
  return experiment.get_bool(key) ? Watch::kOn : Watch::kOff;
}

/// Only half precision needs its loss scaled: bf16 has fp32's exponent.
engine::LossScaleSettings loss_scale_settings(const config::Experiment& experiment) {
  if (!experiment.get_bool("fp16")) return {};
  engine::LossScaleSettings settings;
  if (const auto scale = experiment.get_optional_double("loss_scale")) {
    settings.initial = settings.smallest = *scale;
    return settings;
  }
  settings.kind = engine::LossScaleSettings::Kind::kDynamic;
  settings.initial = experiment.get_double("initial_loss_scale");
  settings.smallest = experiment.get_double("min_loss_scale");
  settings.window = std::llround(experiment.get_double("loss_scale_window"));
  settings.hysteresis = experiment.get_int("hysteresis");
  return settings;
}

ops::KernelFamilies kernel_families(const config::Experiment& experiment) {
  ops::KernelFamilies families;
  if (experiment.get_bool("moe_use_legacy_grouped_gemm")) families.experts = ops::KernelFamilies::Experts::kOneByOne;
  const std::string attention = experiment.get_string("attention_backend");
  if (attention == "unfused" || attention == "local") families.attention = ops::KernelFamilies::Attention::kPlain;
  return families;
}

}  // namespace

RunOptions run_options(const config::Experiment& experiment) {
  RunOptions options;
  options.run_folder = experiment.run_folder();
  options.seed = static_cast<std::uint64_t>(experiment.get_int("seed"));
  options.global_batch_size = experiment.get_int("global_batch_size");
  options.micro_batch_size = experiment.get_int("micro_batch_size");
  options.seq_length = experiment.get_int("seq_length");
  options.batch_sizes = BatchSizes::from(experiment);
  const auto samples = experiment.get_optional_int("train_samples");
  options.train_iters = samples ? options.batch_sizes.steps_of(*samples) : experiment.get_int("train_iters");
  options.passed_over = integers(experiment, "iterations_to_skip");
  options.rejected_results = experiment.get_optional_string("result_rejected_tracker_filename");
  if (options.rejected_results) {
    const std::vector<std::int64_t> again = rejected_again(*options.rejected_results);
    options.passed_over.insert(options.passed_over.end(), again.begin(), again.end());
  }
  options.phases = phase_ends(experiment);
  options.kind = experiment.get_bool("skip_train") ? RunKind::kEvaluation : RunKind::kTraining;
  options.evaluation = evaluation_options(experiment);
  options.validation_sets = validation_sets(experiment);
  options.loss_watch = watch(experiment, "check_for_spiky_loss");
  options.gradient_watch = watch(experiment, "check_for_large_grads");
  options.eval_iters = experiment.get_int("eval_iters");
  if (options.eval_iters > 0) options.eval_interval = experiment.get_optional_int("eval_interval");
  options.exit_interval = experiment.get_optional_int("exit_interval");
  constexpr double kSecondsPerMinute = 60.0;
  if (const auto minutes = experiment.get_optional_int("exit_duration_in_mins"))
    options.exit_after_s = static_cast<double>(*minutes) * kSecondsPerMinute;
  options.save = save_options(experiment);
  options.tensorboard = tensorboard_options(experiment);
  options.log_interval = experiment.get_int("log_interval");
  options.log_avg_skip_iterations = experiment.get_int("log_avg_skip_iterations");
  options.on_nonfinite =
      experiment.get_bool("check_for_nan_in_loss_and_grad") ? OnNonFinite::kStop : OnNonFinite::kSkip;
  options.weight_decay = weight_decay_schedule(experiment, options.train_samples());
  options.per_layer_log =
      experiment.get_bool("moe_per_layer_logging") ? RunOptions::PerLayerLog::kYes : RunOptions::PerLayerLog::kNo;
  if (experiment.get_bool("log_params_norm")) options.params_norm = RunOptions::LogNorm::kYes;
  if (experiment.get_bool("log_num_zeros_in_grad")) options.gradient_zeros = RunOptions::LogZeros::kYes;
  if (experiment.get_bool("log_energy")) options.energy = RunOptions::LogEnergy::kYes;
  if (experiment.get_bool("log_max_attention_logit")) options.largest_logit = RunOptions::LogLogits::kYes;
  if (experiment.get_bool("log_progress")) options.progress_file = RunOptions::LogProgress::kYes;
  options.memory_interval = experiment.get_optional_int("log_memory_interval");
  options.determinism =
      experiment.get_bool("deterministic_mode") ? ops::Determinism::kSameBits : ops::Determinism::kAnyOrder;
  options.kernels = kernel_families(experiment);
  options.zone_timers = experiment.get_int("timing_log_level") > 0 ? ops::ZoneTimers::kOn : ops::ZoneTimers::kOff;
  options.optimizer = model::optimizer_spec(experiment);
  options.step = {.policy = model::numeric_policy(experiment),
                  .loss_fusion = experiment.get_bool("cross_entropy_loss_fusion") ? model::LossFusion::kFused
                                                                                  : model::LossFusion::kUnfused,
                  .micro_batch = {.num_sequences = options.micro_batch_size, .seq_length = options.seq_length},
                  .clip_grad = experiment.get_double("clip_grad"),
                  .seed = options.seed,
                  .recompute = model::recompute_spec(experiment, model::build_model_spec(experiment)),
                  .loss_scale = loss_scale_settings(experiment),
                  .rerun = rerun_settings(experiment, options.seed)};
  const std::int64_t stage = experiment.get_int("turbo_sync_free_moe_stage");
  // What a record asks of weights or gradients must be asked before the next step moves them.
  const bool looks_at_state = options.params_norm == RunOptions::LogNorm::kYes ||
                              options.gradient_zeros == RunOptions::LogZeros::kYes ||
                              options.step.rerun.mode != engine::RerunMode::kDisabled;
  if (stage >= 2 && !looks_at_state) options.read_back = RunOptions::ReadBack::kOneStepLater;
  if (stage >= 3) options.step.launch = engine::Launch::kRecorded;
  // A loss scale that is too large is not a reason to stop: it falls, and the run goes on.
  const bool stops = options.on_nonfinite == OnNonFinite::kStop &&
                     options.step.loss_scale.kind == engine::LossScaleSettings::Kind::kConstant;
  const bool is_later = options.read_back == RunOptions::ReadBack::kOneStepLater;
  if (stops && is_later) options.step.after_nonfinite = engine::AfterNonFinite::kHalt;
  options.learning_rate = learning_rate_schedule(experiment, options.train_samples());
  options.end_learning_rate = end_learning_rate_schedule(experiment, options.train_samples());
  // A depth's mask ends where the main loss's does, or where attention does.
  const bool has_documents = experiment.get_bool("eod_mask_loss") || experiment.get_bool("reset_attention_mask") ||
                             experiment.get_bool("reset_position_ids");
  options.documents = has_documents ? RunOptions::Documents::kByEod : RunOptions::Documents::kNotMarked;
  options.data = data_options(experiment, options);
  return options;
}

}  // namespace primus::train
