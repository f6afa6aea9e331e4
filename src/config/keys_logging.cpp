// Rows: logging and trackers, profiling, and keys of the original's Python runtime.
#include "config/key_rows.hpp"

// clang-format off
namespace primus::config::rows {
namespace {

constexpr std::string_view kNothingSent = "nothing is sent anywhere";
constexpr std::string_view kNoService = "nothing is sent anywhere; metrics.jsonl, TensorBoard's and MLflow's files have every figure";
constexpr std::string_view kNoReports = "TraceLens is a Python program, and there is no Python runtime";
constexpr std::string_view kNoPython = "there is no Python runtime";
constexpr std::string_view kOneLog = "terminal and log file get the same lines; PRIMUS_LOG_LEVEL or --debug asks for more of them";

constexpr Key kLogging[] = {
  works("log_interval", kInt, "100", ">=1", "Steps between log lines."),
  no_effect("log_throughput", kBool, "false", "", "Tokens per second and TFLOP/s in the log line.", "always in the log line"),
  works("log_avg_skip_iterations", kInt, "2", ">=0", "First steps left out of averages."),
  no_effect("log_avg_reset_interval", kInt, "10", ">=1", "Steps after which averages start anew.", "averages are over the log interval, the summary's over the run"),
  works("log_params_norm", kBool, "false", "", "Norm of the parameters in the log line."),
  works("log_num_zeros_in_grad", kBool, "false", "", "Zero gradients in the log line."),
  works("log_progress", kBool, "false", "", "File that records tokens and FLOPs so far.", "progress.txt beside the checkpoints"),
  no_effect("wall_clock_step_timer", kBool, "false", "", "Time steps by the wall clock.", "steps always are"),
  works("timing_log_level", kInt, "0", "0..2", "How much is timed.", "above 0: a table of time by op at the end of the run"),
  no_effect("timing_log_option", kText, "minmax", "max|minmax|all", "How timers of several ranks are shown.", "operations are timed by the profiler"),
  works("disable_tensorboard", kBool, "true", "", "No TensorBoard files."),
  works("tensorboard_dir", kText, "null", "", "Folder of TensorBoard files.", "null: tensorboard in the run's folder"),
  works("tensorboard_log_interval", kInt, "1", ">=1", "Steps between TensorBoard entries."),
  works("tensorboard_queue_size", kInt, "1000", ">=1", "Entries held before writing."),
  works("log_timers_to_tensorboard", kBool, "false", "", "Timers in TensorBoard."),
  works("log_batch_size_to_tensorboard", kBool, "false", "", "Batch size in TensorBoard."),
  works("log_learning_rate_to_tensorboard", kBool, "true", "", "Learning rate in TensorBoard."),
  works("log_validation_ppl_to_tensorboard", kBool, "false", "", "Perplexity in TensorBoard."),
  works("log_memory_to_tensorboard", kBool, "false", "", "Memory in TensorBoard."),
  works("log_world_size_to_tensorboard", kBool, "false", "", "Ranks in TensorBoard."),
  works("log_loss_scale_to_tensorboard", kBool, "true", "", "Loss scale in TensorBoard."),
  no_effect("disable_wandb", kBool, "true", "", "No Weights & Biases.", kNoService),
  no_effect("wandb_project", kText, "null", "", "Weights & Biases project.", kNoService),
  no_effect("wandb_exp_name", kText, "null", "", "Weights & Biases run name.", kNoService),
  no_effect("wandb_save_dir", kText, "null", "", "Weights & Biases folder.", kNoService),
  no_effect("wandb_entity", kText, "null", "", "Weights & Biases owner.", kNoService),
  works("disable_mlflow", kBool, "true", "", "No MLflow.", "else files of its own form, in the folder that MLFLOW_TRACKING_URI names or in mlruns of the workspace"),
  works("mlflow_run_name", kText, "null", "", "MLflow run name.", "null: exp_name"),
  works("mlflow_experiment_name", kText, "null", "", "MLflow experiment.", "null: exp_name"),
  works("mlflow_upload_traces", kBool, "false", "", "Traces to MLflow.", "copied to artifacts/traces at the end"),
  works("mlflow_upload_logs", kBool, "false", "", "Logs to MLflow.", "copied to artifacts/logs at the end"),
  no_effect("mlflow_upload_tracelens_report", kBool, "false", "", "Trace reports to MLflow.", kNoReports),
  works("mlflow_upload_performance_metrics", kBool, "false", "", "Speed figures to MLflow."),
  no_effect("mlflow_tracelens_ranks", kIntList, "null", "", "Ranks in trace reports.", kNoReports),
  no_effect("mlflow_tracelens_output_format", kText, "xlsx", "", "Format of trace reports.", kNoReports),
  no_effect("mlflow_tracelens_cleanup_after_upload", kBool, "false", "", "Remove trace reports after upload.", kNoReports),
  no_effect("mlflow_tracelens_auto_install", kBool, "true", "", "Install a Python package when missing.", kNoPython),
  no_effect("generate_tracelens_report", kBool, "false", "", "Report on the run's traces.", kNoReports),
  no_effect("enable_one_logger", kBool, "true", "", "Report to a tracking service.", "nothing is sent anywhere"),
  no_effect("one_logger_project", kText, "megatron-lm", "", "Project at that service.", "nothing is sent anywhere"),
  no_effect("one_logger_run_name", kText, "null", "", "Run name at that service.", "nothing is sent anywhere"),
  no_effect("one_logger_async", kBool, "false", "", "Report beside training.", "nothing is sent anywhere"),
  no_effect("app_tag_run_name", kText, "null", "", "Tag at that service.", "nothing is sent anywhere"),
  no_effect("app_tag_run_version", kText, "0.0.0", "", "Version tag at that service.", "nothing is sent anywhere"),
  no_effect("logging_level", kInt, "null", ">=0", "Level of the Python log.", kNoPython),
  no_effect("config_logger_dir", kText, "", "", "Folder of Python configuration dumps.", "the run's folder holds the resolved experiment"),
  no_effect("sink_level", kText, "null", "", "Level of every log.", kOneLog),
  no_effect("file_sink_level", kText, "DEBUG", "", "Level of the log files.", kOneLog),
  no_effect("stderr_sink_level", kText, "INFO", "", "Level of the terminal's log.", kOneLog),
  no_effect("use_rocm_mem_info", kBool, "false", "", "Device memory by an external tool each step.", "memory is in the log line"),
  no_effect("use_rocm_mem_info_iters", kIntList, "[1, 2]", "", "Steps at which it asks.", "memory is in the log line"),
  no_effect("log_device_memory_used", kBool, "false", "", "Device memory in the log line.", "memory is in the log line"),
  works("log_memory_interval", kInt, "null", ">=1", "Steps between lines about memory."),
  works("log_energy", kBool, "false", "", "Energy in the log line.", "of the GPU by NVML; of the processors where Linux shows their counters"),
  works("log_max_attention_logit", kBool, "false", "", "Largest attention logit in the log line.", "of the step before the line; on the CPU"),
  no_effect("otel_enabled", kBool, "false", "", "Spans to a tracing service.", kNothingSent),
  no_effect("otel_service_name", kText, "null", "", "Name at that service.", kNothingSent),
  no_effect("otel_span_groups", kText, "null", "", "Which spans are sent.", kNothingSent),
  works("dump_param_to_param_group_map", kText, "null", "", "File that lists the optimizer's groups.", "JSON, written when the run starts"),
};

constexpr Key kProfile[] = {
  works("profile", kBool, "false", "", "Record a trace of some steps.", "with use_pytorch_profiler a trace; alone the steps are marked for nsys, ncu or rocprof on a GPU"),
  works("use_pytorch_profiler", kBool, "false", "", "Record through libtorch's profiler.", "the trace lies in tensorboard_dir, else in tensorboard of the run's folder"),
  works("profile_ranks", kIntList, "[0]", "", "Ranks that record."),
  works("profile_step_start", kInt, "10", ">=0", "First recorded step.", "steps count from 0: 10 is iteration 11 of the log"),
  works("profile_step_end", kInt, "12", ">=0", "Step after the last recorded one."),
  works("disable_profiler_activity_cpu", kBool, "false", "", "Record the device only."),
  works("torch_profiler_record_shapes", kBool, "true", "", "Record shapes."),
  no_effect("torch_profiler_with_stack", kBool, "true", "", "Record call stacks.", kNoPython),
  works("torch_profiler_use_gzip", kBool, "true", "", "Compress traces."),
  works("record_memory_history", kBool, "false", "", "Record every allocation.", "on a GPU; written when the run ends, for PyTorch's memory viewer"),
  works("memory_snapshot_path", kText, "snapshot.pickle", "", "File of the recorded allocations."),
  works("nvtx_ranges", kBool, "false", "", "Named ranges for external profilers.", "on a GPU, in all steps; without it those of the steps that profile marks"),
  works("record_shapes", kBool, "false", "", "Shapes in those ranges.", "of libtorch's operations, in the steps that profile marks"),
  no_effect("pytorch_profiler_collect_shapes", kBool, "false", "", "Record shapes.", "torch_profiler_record_shapes says so, which is on unless written"),
  no_effect("pytorch_profiler_collect_callstack", kBool, "false", "", "Record call stacks.", kNoPython),
  works("pytorch_profiler_collect_chakra", kBool, "false", "", "Record an execution trace.", "for Chakra's tools: rankN_stepsA-B.chakra.json beside the trace"),
};

constexpr Key kRuntime[] = {
  no_effect("manual_gc", kBool, "false", "", "Run Python's garbage collector by hand.", kNoPython),
  no_effect("manual_gc_interval", kInt, "0", ">=0", "Steps between collections.", kNoPython),
  no_effect("manual_gc_eval", kBool, "true", "", "Collect around evaluations.", kNoPython),
  no_effect("torch_compile", kMap, "null", "", "Compile Python graphs.", kNoPython),
  no_effect("disable_compile_dependencies", kBool, "true", "", "Do not build Python helpers.", kNoPython),
  no_effect("patch_moe_overlap", kBool, "false", "", "Replace the framework's overlap.", "nothing is patched here"),
  no_effect("enable_cuda_graph", kBool, "false", "", "Replay recorded kernels.", "no step is recorded: kernels are launched one by one"),
  no_effect("external_cuda_graph", kBool, "false", "", "Recorded kernels kept by the caller.", "no step is recorded: kernels are launched one by one"),
  no_effect("cuda_graph_scope", kText, "full", "", "What is recorded.", "no step is recorded: kernels are launched one by one"),
  no_effect("cuda_graph_warmup_steps", kInt, "3", ">=0", "Steps before recording.", "no step is recorded: kernels are launched one by one"),
};

}  // namespace

std::span<const Key> logging_keys() { return kLogging; }
std::span<const Key> profile_keys() { return kProfile; }
std::span<const Key> runtime_keys() { return kRuntime; }

}  // namespace primus::config::rows
