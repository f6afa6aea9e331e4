#include "config/flag_names.hpp"

#include <algorithm>
#include <iterator>

#include "config/key_table.hpp"

namespace primus::config {
namespace {

struct Name {
  std::string_view flag;
  std::string_view key;
};

// Where the flag is not no_KEY or disable_KEY.
constexpr Name kNames[] = {
    {"disable_bias_linear", "add_bias_linear"},
    {"no_position_embedding", "add_position_embedding"},
    {"no_rope_fusion", "apply_rope_fusion"},
    {"no_barrier_with_level_1_timing", "barrier_with_L1_time"},
    {"bert_no_binary_head", "bert_binary_head"},
    {"no_one_logger", "enable_one_logger"},
    {"no_inference_dynamic_batching_prefix_caching", "inference_dynamic_batching_enable_prefix_caching"},
    {"muon_no_split_qkv", "muon_split_qkv"},
    {"use_same_sampling_seed_across_dp_ranks", "offset_sampling_seed_by_dp_rank"},
    {"no_overlap_p2p_communication", "overlap_p2p_comm"},
    {"no_initialization", "perform_initialization"},
    {"torch_fsdp2_no_reshard_after_forward", "torch_fsdp2_reshard_after_forward"},
    {"disable_gloo_process_groups", "enable_gloo_process_groups"},
    {"disable_mamba_mem_eff_path", "use_mamba_mem_eff_path"},
};

}  // namespace

const Key* key_turned_off_by(std::string_view flag) {
  const auto spelled =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const Name& row) { return row.flag == flag; });
  if (spelled != std::end(kNames)) return find_key(spelled->key);
  for (const std::string_view prefix : {"no_", "disable_"}) {
    if (!flag.starts_with(prefix)) continue;
    const Key* row = find_key(flag.substr(prefix.size()));
    if (row && row->type == KeyType::kBool) return row;
  }
  return nullptr;
}

}  // namespace primus::config
