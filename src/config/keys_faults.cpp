// Rows: how a run ends, faults and what watches for them.
#include "config/key_rows.hpp"

// clang-format off
namespace primus::config::rows {
namespace {

constexpr std::string_view kMapped = "data is read from mapped files";
constexpr std::string_view kOwnWatch = "the launcher and the worker watch the run themselves";

constexpr Key kExit[] = {
  works("exit_interval", kInt, "null", ">=1", "End the run at a step that this divides."),
  works("deterministic_mode", kBool, "false", "", "Two runs give the same bits.", "always so on the CPU"),
  no_effect("exit_signal_handler", kBool, "false", "", "Save and end on SIGTERM.", "always on, for SIGINT, SIGUSR1 and SIGUSR2 too"),
  works("exit_duration_in_mins", kInt, "null", ">=1", "End the run after this time."),
  works("exit_on_missing_checkpoint", kBool, "false", "", "End when the checkpoint to load is not there."),
  planned("replication", kBool, "false", "", "Local checkpoints copied to other nodes."),
  planned_detail("replication_jump", kInt, "null", ">=1", "Distance between such copies."),
  planned_detail("replication_factor", kInt, "null", ">=1", "Number of such copies."),
  planned("check_weight_hash_across_dp_replicas_interval", kInt, "null", ">=1", "Steps between comparisons of the replicas' weights."),
  planned("adlr_autoresume", kBool, "false", "", "Resume through a cluster's own service."),
  planned_detail("adlr_autoresume_interval", kInt, "1000", ">=1", "Steps between questions to that service."),
  works("error_injection_rate", kInt, "0", ">=0", "Wrong results on purpose, one in so many steps, for tests of the checks.", "0: none; with rerun_mode"),
  works("error_injection_type", kText, "transient_error", "correct_result|transient_error|persistent_error", "Kind of wrong result."),
  works("rerun_mode", kText, "disabled", "disabled|validate_results|report_stats", "Compute suspicious steps again, or all.", "validate_results: where loss or gradients are not finite or jump, and other bits end the run; report_stats: every step, and differences are told"),
  planned("log_straggler", kBool, "false", "", "Report ranks that are slow."),
  planned_detail("disable_straggler_on_startup", kBool, "false", "", "Such reports wait for a command."),
  planned_detail("straggler_ctrlr_port", kInt, "65535", "1..65535", "Port of that command."),
  planned_detail("straggler_minmax_count", kInt, "1", ">=1", "How many slow and fast ranks are named."),
  planned("enable_ft_package", kBool, "false", "", "Watch ranks through a fault-tolerance package."),
  planned_detail("calc_ft_timeouts", kBool, "false", "", "Measure that package's time limits."),
  planned("run_workload_inspector_server", kBool, "false", "", "Server that answers questions about the run."),
  planned("inprocess_restart", kBool, "false", "", "Start again without a new process."),
  no_effect("exit_signal", kText, "SIGTERM", "", "Signal that ends a run cleanly.", "SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 always do"),
  no_effect("exit_signal_handler_for_training", kBool, "false", "", "End training cleanly on a signal.", "always on"),
  no_effect("exit_signal_handler_for_dataloader", kBool, "false", "", "End data loaders cleanly on a signal.", kMapped),
  planned("gpu_sniff_test_interval", kInt, "null", ">=1", "Steps between short tests of every device."),
};

constexpr Key kRestart[] = {
  planned_detail("ft_num_warmup_iters", kInt, "5", ">=0", "Steps before the fault-tolerance package measures time."),
  planned_detail("inprocess_active_world_size", kInt, "1", ">=1", "Restart: ranks that take part."),
  planned_detail("inprocess_granularity", kText, "node", "node|rank", "Restart: what leaves when a rank fails."),
  planned_detail("inprocess_max_iterations", kInt, "null", ">=1", "Restart: most restarts."),
  planned_detail("inprocess_barrier_timeout", kReal, "120.0", ">0", "Restart: seconds to wait for all ranks."),
  planned_detail("inprocess_completion_timeout", kReal, "120.0", ">0", "Restart: seconds to wait for all ranks at the end."),
  planned_detail("inprocess_hard_timeout", kReal, "90.0", ">0", "Restart: seconds without progress before a rank is ended."),
  planned_detail("inprocess_soft_timeout", kReal, "60.0", ">0", "Restart: seconds without progress before a restart."),
  planned_detail("inprocess_heartbeat_interval", kReal, "30.0", ">0", "Restart: seconds between signs of life."),
  planned_detail("inprocess_heartbeat_timeout", kReal, "60.0", ">0", "Restart: seconds without one before a rank counts as dead."),
  planned_detail("inprocess_last_call_wait", kReal, "1.0", ">=0", "Restart: seconds in which further failures still count."),
  planned_detail("inprocess_monitor_process_interval", kReal, "1.0", ">0", "Restart: seconds between looks at the process."),
  planned_detail("inprocess_monitor_thread_interval", kReal, "1.0", ">0", "Restart: seconds between looks at its threads."),
  planned_detail("inprocess_progress_watchdog_interval", kReal, "1.0", ">0", "Restart: seconds between looks at its progress."),
  planned_detail("inprocess_termination_grace_time", kReal, "1.0", ">=0", "Restart: seconds between asking and ending a process."),
  planned_detail("inprocess_empty_cuda_cache", kBool, "false", "", "Restart: give device memory back first."),
  planned("fault_injector_ranks", kText, "null", "", "Ranks that fail on purpose, for tests.", "faults on purpose"),
  planned("fault_injector_num_ranks", kInt, "null", ">=1", "How many ranks fail on purpose.", "faults on purpose"),
  planned_detail("fault_injector_fault_types", kText, "null", "", "Kinds of such faults."),
  planned_detail("fault_injector_fault_probabilities", kText, "null", "", "How likely each kind is."),
  planned_detail("fault_injector_fault_delay", kReal, "null", ">=0", "Seconds until the fault."),
  planned_detail("fault_injector_mtti_seconds", kReal, "null", ">0", "Mean seconds between faults."),
  planned_detail("fault_injector_offset_seconds", kReal, "null", ">=0", "Seconds before the first fault."),
  planned_detail("fault_injector_delay_start_iteration", kInt, "null", ">=0", "Step from which the delay counts."),
  planned_detail("fault_injector_seed", kInt, "null", "", "Keys the choice of faults."),
  no_effect("flight_recorder_dump_on_timeout", kBool, "true", "", "Write recent collectives to a file when one hangs.", kOwnWatch),
  no_effect("flight_recorder_dump_path", kText, "null", "", "Where that file is written.", kOwnWatch),
  no_effect("flight_recorder_extra_dump_on_exec", kBool, "true", "", "Write it on request too.", kOwnWatch),
  no_effect("flight_recorder_include_only_active", kBool, "true", "", "Only collectives that have not ended.", kOwnWatch),
  no_effect("flight_recorder_include_stack_trace", kBool, "false", "", "With the place in the program.", kOwnWatch),
  no_effect("flight_recorder_trace_buffer_size", kInt, "2000", ">=0", "Collectives that are remembered.", kOwnWatch),
};

}  // namespace

std::span<const Key> exit_keys() { return kExit; }
std::span<const Key> restart_keys() { return kRestart; }

}  // namespace primus::config::rows
