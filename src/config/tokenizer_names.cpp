#include "config/experiment.hpp"
#include "config/tokenizer_facts.hpp"

namespace primus::config {

TokenizerNames tokenizer_names(const Experiment& experiment) {
  const auto text = [&](std::string_view key) { return experiment.get_optional_string(key).value_or(""); };
  TokenizerNames names{text("tokenizer_type"), text("tokenizer_model"), text("vocab_file"), text("merge_file")};
  names.extras = {.special_tokens = experiment.get_strings("special_tokens"),
                  .num_special_tokens = experiment.get_int("tiktoken_num_special_tokens"),
                  .pattern = text("tiktoken_pattern"),
                  .vocab_size = experiment.get_optional_int("vocab_size").value_or(0)};
  const std::vector<std::string> of_tiktoken = experiment.get_strings("tiktoken_special_tokens");
  if (names.type == "TikTokenizer" && !of_tiktoken.empty()) names.extras.special_tokens = of_tiktoken;
  return names;
}

}  // namespace primus::config
