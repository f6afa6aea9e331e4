#pragma once
// The four layers of settings, merged key by key and typed by the key table.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "config/experiment.hpp"
#include "config/key_table.hpp"
#include "config/node.hpp"

namespace primus::config {

/// Collects layers from the weakest to the strongest; each entry is checked where it is written.
class SettingMerger {
 public:
  explicit SettingMerger(std::vector<Problem>& problems) : problems_(problems) {}

  /// Merge a map of keys. `prefix` comes before the key in problems.
  void add_layer(const Node& map, Layer layer, const std::string& prefix);

  /// Merge one key; `written` is how problems name it.
  void add(std::string_view key, const Node& value, Layer layer, const std::string& written);

  /// Settings for every key that some layer set, with what each replaced.
  void apply_to(Experiment& experiment) const;

 private:
  struct Entry {
    Node node;
    Value value;
    Layer layer = Layer::kDefault;
    std::string name;  // as written: the key or its alias
    std::vector<ReplacedValue> replaced;
  };

  /// Tells what is wrong with the entries of a map; false if something is.
  bool check_entries(const Node& map, const Key& row, const std::string& written);

  static Origin origin_of(const Entry& entry);

  std::vector<Problem>& problems_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace primus::config
