#pragma once
// Which layers are MoE: the list grammar of moe_layer_freq, read by a small parser and never by an evaluator.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/value.hpp"

namespace primus::config {

/// Outcome of reading a list expression: the list, or why there is none.
struct ListExpression {
  std::vector<std::int64_t> items;
  std::string error;  // empty: read
};

/// Read `[0]*1+[1]*26`, also in parentheses; list := '[' integers ']' | '(' sum ')', sum := list ['*' n] {'+' ...}.
ListExpression parse_list_expression(std::string_view text);

/// The items of a well-formed pattern, text or list; none of an integer.
std::vector<std::int64_t> pattern_items(const Value& pattern);

/// The same pattern in its short form: `([0]*1+[1]*26)`.
std::string pattern_text(const std::vector<std::int64_t>& items);

/// Value 1 for each MoE layer, 0 for each dense one. `frequency` n makes every n-th layer MoE, the first included.
/// Throws UserError, which names `key`, if the pattern is malformed or its length is not `num_layers`.
std::vector<std::int64_t> expand_layer_pattern(const Value& frequency, std::int64_t num_layers,
                                               std::string_view key = "moe_layer_freq");

/// Which layers of sparse attention choose their keys: those up to the offset, and from there on each n-th; the others
/// take the choice of the layer before. Counted as in Megatron, from 1.
struct KeyChoices {
  std::int64_t period = 1;
  std::int64_t offset = 0;

  /// `layer` from 0.
  bool are_made_in(std::int64_t layer) const { return layer < offset || (layer + 1 - offset) % period == 0; }
};

}  // namespace primus::config
