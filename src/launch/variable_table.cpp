// What variables mean: the table behind --dry-run's environment section.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "base/text.hpp"
#include "config/parse.hpp"
#include "launch/environment.hpp"

namespace primus::launch {
namespace {

struct Row {
  std::string_view name;  // ends with '*': a prefix
  std::string_view effect;
  std::string_view values = "";  // "a|b" these, "1..32" a range, ">=1", "list>=1" with commas; "" anything
};

constexpr std::string_view kSwitch = "0|1";

constexpr std::string_view kDeviceOnly = "passed on to the workers; it matters with devices";
constexpr std::string_view kTransformerEngine = "no effect: there is no Transformer Engine";

// Whole names first; of prefixes, the first that fits.
constexpr Row kRows[] = {
    {"WORLD_SIZE", "number of processes, where no option says it"},
    {"NNODES", "nodes; times GPUS_PER_NODE the number of processes"},
    {"NODE_RANK", "number of this node"},
    {"GPUS_PER_NODE", "devices of a node"},
    {"MASTER_ADDR", "where workers of several nodes meet; with one process nobody has to be met"},
    {"MASTER_PORT", "where workers of several nodes meet; with one process nobody has to be met"},
    {"LOCAL_RANKS", "no effect: the first worker and any that fails are heard"},
    {"RUN_MODE", "single: one process", "single|torchrun"},
    {"VENV_ACTIVATE", "no effect: there is no Python environment to enter"},
    {"ENABLE_NUMA_BINDING",
     "where it is 1, a GPU's worker runs on the cores near its device, and its memory is there; no effect on a CPU",
     kSwitch},
    {"HSA_KERNARG_POOL_SIZE",
     "passed on to the workers: the ROCm runtime's room for kernel arguments; no effect on a CPU", ">=1"},
    {"USING_UEP", "1: UCCL as the transport of DeepEP; with one process tokens stay where they are", kSwitch},
    {"USING_AINIC", "1: NCCL's settings for AMD's AI NICs", kSwitch},
    {"PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND", "transport of DeepEP; with one process tokens stay where they are",
     "TURBO|DEEP_EP"},
    {"PRIMUS_TURBO_DEEPEP_TIMEOUT", "seconds until DeepEP gives up; with one process tokens stay where they are",
     ">=1"},
    {"PRIMUS_TURBO_AUTO_TUNE", "no effect: kernels are chosen by shape and device", kSwitch},
    {"PRIMUS_DETERMINISTIC", "1: collectives and libraries repeat themselves bit by bit; our own kernels always do",
     kSwitch},
    {"PRIMUS_LOG_LEVEL", "DEBUG: the worker says more", "TRACE|DEBUG|INFO|SUCCESS|WARNING|ERROR|CRITICAL"},
    {"PRIMUS_GEMM_CHOICES", "file of measured kernel choices of a GPU's products: read, and added to"},
    {"PRIMUS_LOG_GEMM", "1: the worker tells each choice of a kernel", kSwitch},
    {"PRIMUS_LOG_TIMESTAMP", "no effect: log lines have times", kSwitch},
    {"PRIMUS_LOG_COLOR", "no effect: colours are for terminals; NO_COLOR takes them away", kSwitch},
    {"PRIMUS_CONFIG_DIR", "folder of the presets"},
    {"PRIMUS_RUNNER_DIR", "folder of the launcher file and of hooks"},
    {"PRIMUS_WORKER", "worker program"},
    {"PRIMUS_SKIP_VALIDATION", "1: the launch variables are not checked", kSwitch},
    {"PRIMUS_SKIP_MAIN_LAUNCH", "1, exported by a hook: nothing is started", kSwitch},
    {"PRIMUS_GPU_MODEL", "no effect: devices say themselves what they are"},
    {"PRIMUS_PATCHES", "no effect: there is no framework to patch"},
    {"PRIMUS_EXIT_FAST", "no effect: a worker has nothing to tear down", kSwitch},
    {"PRIMUS_EMPTY_CACHE_INTERVAL", "no effect: sizes are planned, and no cache grows", ">=0"},
    {"PRIMUS_STRICT_REQUIREMENTS", "no effect: there are no packages to check", kSwitch},
    {"PRIMUS_AUTO_INSTALL", "no effect: there are no packages to install", kSwitch},
    {"PRIMUS_AUTO_DEPS_SYNC", "no effect: nothing has to be fetched", kSwitch},
    {"PRIMUS_THIRDPARTY_DIR", "no effect: nothing has to be fetched"},
    {"PRIMUS_BASH", "no effect: this program is no script"},
    {"PRIMUS_HIPBLASLT_TUNING", "no effect: kernels are chosen by shape and device", kSwitch},
    {"PRIMUS_HIPBLASLT_TUNING_STAGE", "no effect: kernels are chosen by shape and device", "0..3"},
    {"PRIMUS_HIPBLASLT_TUNING*", "no effect: kernels are chosen by shape and device"},
    {"PRIMUS_TRAIN_RUNTIME", "no effect: there is one runtime"},
    {"PRIMUS_*", "filled in where an experiment names it as ${NAME}"},
    {"DUMP_PP_DIR", "folder of the pipeline's record, for dump_pp_data"},
    {"MOE_SKIP_IDENTITY_SORT", "no effect: one expert's tokens are never sorted", kSwitch},
    {"USE_TE_SWIGLU", kTransformerEngine, kSwitch},
    {"PATCH_TE_FLASH_ATTN", kTransformerEngine, kSwitch},
    {"REBUILD_*", "no effect: nothing is built at the start of a run"},
    {"SDMA_ALL_GATHER", kDeviceOnly, kSwitch},
    {"BACKEND_PATH", "no effect: there is no Python backend"},
    {"DATA_PATH", "no effect: data is named by data_path and its kin"},
    {"TOKENIZED_DATA_PATH", "filled in where an experiment names it as ${NAME}"},
    {"HF_HOME", "passed on to the workers"},
    {"HF_TOKEN", "passed on to the workers"},
    {"WANDB_API_KEY", "passed on to the workers"},
    {"GPU_MAX_HW_QUEUES", kDeviceOnly, ">=1"},
    {"OMP_NUM_THREADS", "passed on to the workers: their threads", "list>=1"},
    {"OMP_WAIT_POLICY", "passed on to the workers: how their threads wait", "active|passive|ACTIVE|PASSIVE"},
    {"OMP_*", "passed on to the workers: their threads"},
    {"GOMP_SPINCOUNT", "passed on to the workers: how long their threads wait awake", ">=0"},
    {"GOMP_*", "passed on to the workers: how their threads wait"},
    {"MKL_NUM_THREADS", "passed on to the workers: threads of matrix products", ">=1"},
    {"MKL_*", "passed on to the workers: threads of matrix products"},
    {"NVTE_ROCM_ENABLE_MXFP8", kTransformerEngine, kSwitch},
    {"NVTE_CK_USES_BWD_V3", kTransformerEngine, kSwitch},
    {"NVTE_*", kTransformerEngine},
    {"NCCL_*", "passed on to the workers: collectives between devices"},
    {"RCCL_*", "passed on to the workers: collectives between devices"},
    {"TORCH_COMPILE_DISABLE", "no effect: nothing is compiled while training", kSwitch},
    {"TORCH_NCCL_HIGH_PRIORITY", "passed on to the workers", kSwitch},
    {"TORCH_*", "passed on to the workers"},
    {"PYTORCH_*", "passed on to the workers"},
    {"GLOO_*", "no effect: collectives on CPUs are MPI's"},
    {"OMPI_*", "passed on to the workers: collectives between CPUs"},
    {"UCX_*", "passed on to the workers: the network between nodes"},
    {"FI_*", "passed on to the workers: the network between nodes"},
    {"IONIC_*", "passed on to the workers: the network between nodes"},
    {"UCCL_*", "passed on to the workers: the network between nodes"},
    {"NVSHMEM_*", "passed on to the workers: the network between nodes"},
    {"HSA_NO_SCRATCH_RECLAIM", kDeviceOnly, kSwitch},
    {"HSA_ENABLE_SDMA", kDeviceOnly, kSwitch},
    {"HSA_*", kDeviceOnly},
    {"HIP_*", kDeviceOnly},
    {"ROCR_*", kDeviceOnly},
    {"AMD_*", kDeviceOnly},
    {"CUDA_DEVICE_MAX_CONNECTIONS", kDeviceOnly, "1..32"},
    {"CUDA_*", kDeviceOnly},
    {"HIPBLASLT_*", kDeviceOnly},
    {"ROCBLAS_DEFAULT_ATOMICS_MODE", kDeviceOnly, kSwitch},
    {"ROCBLAS_*", kDeviceOnly},
};

constexpr std::array<std::string_view, 6> kForwarded = {"PRIMUS_", "NCCL_", "RCCL_", "GLOO_", "IONIC_", "HIPBLASLT_"};
constexpr std::array<std::string_view, 4> kSecretWords = {"TOKEN", "API_KEY", "PASSWORD", "SECRET"};

bool fits(const Row& row, std::string_view name) {
  if (!row.name.ends_with('*')) return row.name == name;
  return name.starts_with(row.name.substr(0, row.name.size() - 1));
}

const Row* row_of(std::string_view name) {
  const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return fits(r, name); });
  return row == std::end(kRows) ? nullptr : row;
}

bool in_bounds(std::string_view text, std::int64_t low, std::int64_t high) {
  const auto number = config::parse_int(text);
  return number && *number >= low && *number <= high;
}

bool is_allowed(std::string_view value, std::string_view values) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (values.starts_with(">=")) return in_bounds(value, *config::parse_int(values.substr(2)), kMost);
  const bool is_list = values.starts_with("list>=");
  const std::vector<std::string> parts = split(is_list ? value : values, is_list ? ',' : '|');
  if (is_list) {
    const std::int64_t low = *config::parse_int(values.substr(6));
    return std::all_of(parts.begin(), parts.end(),
                       [&](const std::string& part) { return in_bounds(part, low, kMost); });
  }
  if (const std::size_t dots = values.find(".."); dots != std::string_view::npos)
    return in_bounds(value, *config::parse_int(values.substr(0, dots)), *config::parse_int(values.substr(dots + 2)));
  return std::find(parts.begin(), parts.end(), value) != parts.end();
}

std::string in_words(std::string_view values) {
  if (values.starts_with(">=")) return fmt::format("integer >= {}", values.substr(2));
  if (values.starts_with("list>=")) return fmt::format("integer >= {}, or several with commas", values.substr(6));
  if (const std::size_t dots = values.find(".."); dots != std::string_view::npos)
    return fmt::format("integer from {} to {}", values.substr(0, dots), values.substr(dots + 2));
  const std::vector<std::string> words = split(values, '|');
  if (words.size() == 2) return words[0] + " or " + words[1];
  return fmt::format("one of {}", fmt::join(words, ", "));
}

}  // namespace

std::string expected_value(std::string_view name, std::string_view value) {
  const Row* row = row_of(name);
  // An empty variable counts as one that is not set.
  if (!row || row->values.empty() || value.empty() || is_allowed(value, row->values)) return "";
  return in_words(row->values);
}

bool is_forwarded_to_containers(std::string_view name) {
  return std::any_of(kForwarded.begin(), kForwarded.end(),
                     [name](std::string_view prefix) { return name.starts_with(prefix); });
}

bool is_secret(std::string_view name) {
  // PRIMUS_TOKENIZED_DATA_PATH is a path: a word ends at an underscore or with the name.
  return std::any_of(kSecretWords.begin(), kSecretWords.end(), [name](std::string_view word) {
    const std::size_t at = name.find(word);
    if (at == std::string_view::npos) return false;
    const std::size_t end = at + word.size();
    return end == name.size() || name[end] == '_';
  });
}

std::vector<VariableUse> explain_variables(const Variables& environment) {
  std::vector<VariableUse> uses;
  for (const auto& [name, value] : environment) {
    const Row* row = row_of(name);
    if (!row) continue;
    uses.push_back({name, is_secret(name) ? "(hidden)" : value, std::string(row->effect)});
  }
  return uses;
}

}  // namespace primus::launch
