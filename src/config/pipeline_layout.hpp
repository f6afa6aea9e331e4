#pragma once
// The pipeline's stages as an experiment writes them: pipeline_model_parallel_layout and the older
// decoder_pipeline_manual_split_list become one structure, which the rules check and the planning half places on ranks.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace primus::config {

/// What one stage holds; within a stage, and over all of them, the order is E, t, m, L.
struct PipelineStage {
  std::int64_t num_embeddings = 0;  // E
  std::int64_t num_layers = 0;      // t
  std::int64_t num_mtp_layers = 0;  // m
  std::int64_t num_losses = 0;      // L

  bool operator==(const PipelineStage&) const = default;
};

/// All stages in the order of the layers: stage i is chunk i / PP of rank i mod PP. Stages may be empty.
struct PipelineLayout {
  std::vector<PipelineStage> stages;

  std::int64_t num_stages() const { return static_cast<std::int64_t>(stages.size()); }
  std::int64_t num_layers() const { return sum(&PipelineStage::num_layers); }
  std::int64_t num_mtp_layers() const { return sum(&PipelineStage::num_mtp_layers); }

  bool operator==(const PipelineLayout&) const = default;

 private:
  std::int64_t sum(std::int64_t PipelineStage::*count) const;
};

/// Why a text is no layout, and at which character (from 0; the text's size: at its end).
struct LayoutFault {
  std::string message;
  std::size_t position = 0;
  std::string nearest;  // the change that would make it legal, if there is an obvious one
};

/// Read `Et*3|(tt|)*29,m|L`. Letters: E embedding, t layer, m multi-token prediction depth, L loss; `|` ends a stage,
/// `*n` repeats the letter, bar or parenthesis before it, commas mean nothing. The embedding comes first and the loss
/// last, each once; no layer follows a prediction depth. Bounded: a text cannot stand for more than a million layers.
std::variant<PipelineLayout, LayoutFault> parse_pipeline_layout(std::string_view text);

/// The same layout in its shortest common spelling: "Et*14|t*13,L".
std::string to_text(const PipelineLayout& layout);

/// The same with stages that repeat in parentheses: "Et|(t*2|)*29t,L". For people; what is stored is written out.
std::string to_short_text(const PipelineLayout& layout);

/// Layers as even as they can be, the first stages taking what is left over; prediction depths stand before the loss.
PipelineLayout balanced_layout(std::int64_t num_layers, std::int64_t num_mtp_layers, std::int64_t num_stages);

/// How decoder_pipeline_manual_split_list counts: all chunks of a rank side by side, or (V-shaped schedules) stage by
/// stage in the order of the layers.
enum class SplitOrder { kByRank, kByStage };

/// The old list as a layout. `pipeline_size` must divide the list's length.
PipelineLayout layout_of_split_list(std::span<const std::int64_t> layers, std::int64_t pipeline_size, SplitOrder order,
                                    std::int64_t num_mtp_layers);

/// Two lines: the text (its surroundings, if it is long) and a caret below the character at `position`.
std::string text_with_caret(std::string_view text, std::size_t position);

}  // namespace primus::config
