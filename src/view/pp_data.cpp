#include "view/pp_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "base/visible.hpp"
#include "schedule/algorithms.hpp"
#include "view/pipeline_labels.hpp"
#include "view/pp_passes.hpp"

namespace primus::view {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxBoxes = 4'000'000;
constexpr std::int64_t kMaxCount = 1'000'000;
constexpr int kMaxRanks = 16'384;
constexpr int kMaxChunks = 1024;
constexpr double kMaxTime = 1e15;  // ms; sums stay exact enough and finite

/// The three kinds of boxes as the files call them.
struct KindName {
  std::string_view prefix;
  BoxKind kind;
};
constexpr std::array<KindName, 3> kKinds = {
    {{"fwd", BoxKind::kForward}, {"bwd", BoxKind::kBackward}, {"wgrad", BoxKind::kWeightGrad}}};

[[noreturn]] void refuse(const std::filesystem::path& file, std::string key, std::string message,
                         std::string expected = "", std::string found = "") {
  throw ConfigError({{.file = file.string(),
                      .key = visible(key),
                      .message = std::move(message),
                      .expected = std::move(expected),
                      .found = visible(found)}});
}

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 40 ? text : text.substr(0, 40) + "...";
}

Json read_json(const std::filesystem::path& file) {
  std::string text;
  try {
    text = read_file(file);
  } catch (const UserError& error) {
    refuse(file, "", "cannot be read", "a file of dump_pp_data");
  }
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) refuse(file, "", "is not JSON");
  if (!json.is_object()) refuse(file, "", "is no object", "an object", shown(json));
  return json;
}

/// A count under the first of two names that is there: the simulator of the original has names of its own.
int count_in(const std::filesystem::path& file, const Json& json, std::string_view name, std::string_view other,
             int missing, std::int64_t most = kMaxCount) {
  const auto found = json.contains(name) ? json.find(name) : json.find(other);
  if (found == json.end() || found->is_null()) return missing;
  if (!found->is_number_integer() || *found < 1 || *found > most) {
    refuse(file, found.key(), "is no count", fmt::format("integer from 1 to {}", most), shown(*found));
  }
  return found->get<int>();
}

double time_in(const std::filesystem::path& file, const std::string& key, const Json& value) {
  if (!value.is_number() || std::abs(value.get<double>()) > kMaxTime) {
    refuse(file, key, "is no time", "milliseconds", shown(value));
  }
  return value.get<double>();
}

struct Sizes {
  int num_ranks = 0;          // 0: as many as there are files
  int num_chunks = 0;         // 0: as many as the boxes name, at least 1
  int num_micro_batches = 0;  // 0: as many as there are
};

/// One rank's record of one iteration.
class Record {
 public:
  Record(const std::filesystem::path& file, const std::string& iteration, const Json& json, const Sizes& sizes)
      : file_(file), iteration_(iteration), json_(json), sizes_(sizes) {
    if (!json.is_object()) refuse(file, iteration, "is no object", "an object", shown(json));
  }

  ChartRank rank() const {
    ChartRank rank;
    for (const KindName& row : kKinds) add_boxes(rank, row);
    const auto total = json_.find("total");
    if (total != json_.end()) rank.end = std::max(0.0, time_in(file_, key("total"), *total));
    const auto memory = json_.find("memory");
    if (memory != json_.end() && memory->is_number()) rank.memory = time_in(file_, key("memory"), *memory);
    return rank;
  }

  /// Whether the boxes say which they are: all of them or none; nothing where there is no box.
  std::optional<Numbers> numbers() const {
    std::optional<Numbers> all;
    std::string_view first;
    for (const KindName& row : kKinds) {
      const std::optional<Numbers> numbers = numbers_of(row.prefix);
      if (!numbers) continue;
      if (all && *all != *numbers) {
        const bool is_here = *numbers == Numbers::kWritten;
        refuse(file_, key(fmt::format("{}_minibatch", is_here ? first : row.prefix)),
               fmt::format("names no micro-batches, and {}_minibatch does", is_here ? row.prefix : first));
      }
      if (!all) first = row.prefix;
      all = numbers;
    }
    return all;
  }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", iteration_, name); }

  /// An array of the record; empty if it is not there.
  const Json& array(std::string_view prefix, std::string_view name) const {
    static const Json kNothing = Json::array();
    const auto found = json_.find(fmt::format("{}_{}", prefix, name));
    if (found == json_.end() || found->is_null()) return kNothing;
    if (!found->is_array()) refuse(file_, key(found.key()), "is no list", "a list", shown(*found));
    return *found;
  }

  int id(std::string_view prefix, std::string_view name, std::size_t index, std::int64_t most) const {
    const Json& ids = array(prefix, name);
    if (index >= ids.size()) return 0;
    if (!ids[index].is_number_integer() || ids[index] < 0 || ids[index] > most) {
      refuse(file_, key(fmt::format("{}_{}[{}]", prefix, name, index)), "is no number of a micro-batch or chunk",
             fmt::format("integer from 0 to {}", most), shown(ids[index]));
    }
    return ids[index].get<int>();
  }

  /// A list of numbers is there for every box or for none.
  Numbers list_of_numbers(std::string_view prefix, std::string_view name) const {
    const std::size_t num_boxes = array(prefix, "start").size();
    const std::size_t num_numbers = array(prefix, name).size();
    if (num_numbers != 0 && num_numbers != num_boxes) {
      refuse(file_, key(fmt::format("{}_{}", prefix, name)), fmt::format("{}_start has another length", prefix),
             fmt::format("{} numbers or none", num_boxes), std::to_string(num_numbers));
    }
    return num_numbers == 0 ? Numbers::kMissing : Numbers::kWritten;
  }

  std::optional<Numbers> numbers_of(std::string_view prefix) const {
    const Numbers micro_batches = list_of_numbers(prefix, "minibatch");
    const Numbers chunks = list_of_numbers(prefix, "chunk");
    if (array(prefix, "start").empty()) return std::nullopt;
    const bool needs_chunks = sizes_.num_chunks > 1 && micro_batches == Numbers::kWritten;
    if (needs_chunks && chunks == Numbers::kMissing) {
      refuse(file_, key(fmt::format("{}_chunk", prefix)), fmt::format("is missing, and {}_minibatch is there", prefix),
             "the chunk of every box");
    }
    if (chunks == Numbers::kWritten && micro_batches == Numbers::kMissing) {
      refuse(file_, key(fmt::format("{}_minibatch", prefix)), fmt::format("is missing, and {}_chunk is there", prefix),
             "the micro-batch of every box");
    }
    return micro_batches;
  }

  void add_boxes(ChartRank& rank, const KindName& row) const {
    const Json& starts = array(row.prefix, "start");
    const Json& ends = array(row.prefix, "end");
    if (starts.size() != ends.size()) {
      refuse(file_, key(fmt::format("{}_end", row.prefix)), fmt::format("{}_start has another length", row.prefix),
             fmt::format("{} times", starts.size()), std::to_string(ends.size()));
    }
    if (rank.boxes.size() + starts.size() > kMaxBoxes) refuse(file_, iteration_, "holds too many boxes");
    for (std::size_t i = 0; i < starts.size(); ++i) {
      Box box{.start = time_in(file_, key(fmt::format("{}_start[{}]", row.prefix, i)), starts[i]),
              .end = time_in(file_, key(fmt::format("{}_end[{}]", row.prefix, i)), ends[i]),
              .micro_batch = id(row.prefix, "minibatch", i,
                                sizes_.num_micro_batches > 0 ? sizes_.num_micro_batches - 1 : kMaxCount),
              .chunk = id(row.prefix, "chunk", i, (sizes_.num_chunks > 0 ? sizes_.num_chunks : kMaxChunks) - 1),
              .kind = row.kind};
      if (box.end < box.start) {
        refuse(file_, key(fmt::format("{}_end[{}]", row.prefix, i)), "a box ends before it begins",
               fmt::format("at least {}", box.start), fmt::format("{}", box.end));
      }
      rank.boxes.push_back(box);
    }
  }

  const std::filesystem::path& file_;
  const std::string& iteration_;
  const Json& json_;
  const Sizes& sizes_;
};

/// Whose order the numbers of boxes are that have none.
enum class NumberedBy { kMegatron, kPlace };

/// Micro-batches and chunks in Megatron's own order, for files without them. A rank whose boxes are not as many as that
/// order has keeps the order in which they stand. Weight gradients follow the order of their backwards.
NumberedBy number_boxes(ChartRank& rank, int index, const schedule::Schedule* schedule) {
  NumberedBy by = NumberedBy::kMegatron;
  for (const BoxKind kind : {BoxKind::kForward, BoxKind::kBackward, BoxKind::kWeightGrad}) {
    std::vector<Box*> boxes;
    for (Box& box : rank.boxes) {
      if (box.kind == kind) boxes.push_back(&box);
    }
    std::vector<schedule::Action> actions;
    if (schedule != nullptr) {
      for (const schedule::Action& action : schedule->actions({index})) {
        const bool is_forward = action.kind == schedule::ActionKind::kForward;
        if (schedule::is_compute(action.kind) && is_forward == (kind == BoxKind::kForward)) actions.push_back(action);
      }
    }
    const bool fits = actions.size() == boxes.size();
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      boxes[i]->micro_batch = fits ? actions[i].micro_batch.value : static_cast<int>(i);
      boxes[i]->chunk = fits ? actions[i].chunk.value : 0;
    }
    if (!fits && !boxes.empty()) by = NumberedBy::kPlace;
  }
  return by;
}

std::optional<schedule::Schedule> megatrons_order(int num_ranks, int num_chunks, int num_micro_batches) {
  const schedule::Request request{
      .algorithm = num_chunks > 1 ? schedule::Algorithm::kInterleaved : schedule::Algorithm::k1F1B,
      .num_ranks = num_ranks,
      .num_micro_batches = num_micro_batches,
      .num_chunks = num_chunks};
  if (schedule::fault_of(request)) return std::nullopt;
  return schedule::build(request);
}

/// A backward is whole where no weight gradient stands apart.
void mark_whole_backwards(ChartRank& rank) {
  const bool splits = std::any_of(rank.boxes.begin(), rank.boxes.end(),
                                  [](const Box& box) { return box.kind == BoxKind::kWeightGrad; });
  if (splits) return;
  for (Box& box : rank.boxes) {
    if (box.kind == BoxKind::kBackward) box.kind = BoxKind::kWholeBackward;
  }
}

std::vector<std::string> keys_of(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

/// A unit's name, as --write-data leaves it.
std::string unit_in(const std::filesystem::path& file, const Json& json, std::string_view name,
                    const std::string& missing) {
  constexpr std::size_t kMaxLetters = 16;
  const auto found = json.find(name);
  if (found == json.end() || found->is_null()) return missing;
  const std::string text = found->is_string() ? found->get<std::string>() : "";
  const bool is_name = std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalpha(c) != 0; });
  if (text.empty() || text.size() > kMaxLetters || !is_name) {
    refuse(file, found.key(), "is no unit", fmt::format("1 to {} letters", kMaxLetters), shown(*found));
  }
  return text;
}

Sizes sizes_in(const std::filesystem::path& file, const Json& json) {
  return {.num_ranks = count_in(file, json, "pp_size", "pp_size", 0),
          .num_chunks = count_in(file, json, "vp_size", "vpp_size", 0, kMaxChunks),
          .num_micro_batches = count_in(file, json, "num_mbs", "micro_batches", 0)};
}

/// What config.json says; a folder without one is read by its files alone.
struct Frame {
  Sizes sizes;
  PpUnits units;
};

Frame frame_of(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return {};
  const Json json = read_json(file);
  const PpUnits usual;
  return {sizes_in(file, json),
          {unit_in(file, json, "time_unit", usual.time), unit_in(file, json, "memory_unit", usual.memory)}};
}

std::filesystem::path rank_file(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("pp_rank_{}.json", rank);
}

std::string chosen_iteration(const std::filesystem::path& file, const std::vector<std::string>& iterations,
                             const std::string& wanted) {
  if (iterations.empty()) refuse(file, "", "holds no iteration");
  if (wanted.empty()) return iterations.back();
  if (std::find(iterations.begin(), iterations.end(), wanted) != iterations.end()) return wanted;
  refuse(file, "", "has no such iteration",
         fmt::format("{} to {}", visible(iterations.front()), visible(iterations.back())), wanted);
}

void add_note(PipelineChart& chart, const std::string& note) {
  if (note.empty()) return;
  chart.note += (chart.note.empty() ? "" : "; ") + note;
}

/// For files that name no micro-batches.
void number_all(PipelineChart& chart) {
  const auto num_ranks = static_cast<int>(chart.ranks.size());
  const auto order = megatrons_order(num_ranks, chart.num_chunks, chart.num_micro_batches);
  int by_place = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const NumberedBy by = number_boxes(chart.ranks[static_cast<std::size_t>(rank)], rank, order ? &*order : nullptr);
    by_place += by == NumberedBy::kPlace ? 1 : 0;
  }
  const std::string whose =
      by_place == 0           ? "in Megatron's own order"
      : by_place == num_ranks ? "in the order in which they stand"
                              : fmt::format("in Megatron's own order, on {} as they stand", counted(by_place, "rank"));
  add_note(chart, fmt::format("micro-batches are numbered {}: the files do not name them", whose));
}

void finish(PpData& data, const std::filesystem::path& folder, const Sizes& sizes, Numbers numbers) {
  PipelineChart& chart = data.chart;
  chart.num_chunks = std::max(1, sizes.num_chunks);
  const auto num_forwards =
      static_cast<int>(std::count_if(chart.ranks[0].boxes.begin(), chart.ranks[0].boxes.end(),
                                     [](const Box& box) { return box.kind == BoxKind::kForward; }));
  chart.num_micro_batches =
      std::max(1, sizes.num_micro_batches > 0 ? sizes.num_micro_batches : num_forwards / chart.num_chunks);
  if (numbers == Numbers::kMissing) number_all(chart);
  for (std::size_t rank = 0; rank < chart.ranks.size(); ++rank) {
    ChartRank& row = chart.ranks[rank];
    mark_whole_backwards(row);
    sum_up(row);
    const std::string fault = fault_of_passes(row, numbers);
    if (!fault.empty()) refuse(rank_file(folder, static_cast<int>(rank)), data.iteration, fault);
    share_rows(row);
    chart.step = std::max(chart.step, row.end);
    for (const Box& box : row.boxes) {
      chart.num_chunks = std::max(chart.num_chunks, box.chunk + 1);
      chart.num_micro_batches = std::max(chart.num_micro_batches, box.micro_batch + 1);
    }
  }
  add_note(chart, missing_passes(chart, numbers));
}

}  // namespace

PpData read_pp_data(const std::filesystem::path& folder, const std::string& iteration) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    refuse(folder, "", "is no folder", "a folder of dump_pp_data");
  }
  const Frame frame = frame_of(folder);
  const Sizes& sizes = frame.sizes;
  PpData data;
  data.units = frame.units;
  std::optional<Numbers> numbers;
  std::filesystem::path first;  // that has boxes
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    const std::filesystem::path file = rank_file(folder, rank);
    const bool is_wanted = sizes.num_ranks > 0 ? rank < sizes.num_ranks : std::filesystem::exists(file, error);
    if (!is_wanted) break;
    const Json json = read_json(file);
    if (rank == 0) {
      data.iterations = keys_of(json);
      data.iteration = chosen_iteration(file, data.iterations, iteration);
    }
    const auto record = json.find(data.iteration);
    if (record == json.end()) refuse(file, data.iteration, "is missing, and pp_rank_0.json has it");
    const Record row(file, data.iteration, *record, sizes);
    data.chart.ranks.push_back(row.rank());
    const std::optional<Numbers> own = row.numbers();
    if (own && numbers && *own != *numbers) {
      const bool is_here = *own == Numbers::kWritten;
      refuse(is_here ? first : file, data.iteration,
             fmt::format("names no micro-batches, and {} does", (is_here ? file : first).filename().string()));
    }
    if (own && !numbers) first = file;
    if (own) numbers = own;
  }
  if (data.chart.ranks.empty()) refuse(folder, "", "holds no pp_rank_0.json", "files of dump_pp_data");
  data.chart.name = folder.filename().empty() ? folder.parent_path().filename().string() : folder.filename().string();
  finish(data, folder, sizes, numbers.value_or(Numbers::kWritten));
  return data;
}

void write_pp_data(const PipelineChart& chart, const std::string& iteration, const PpUnits& units,
                   const std::filesystem::path& folder) {
  make_folder(folder);
  const Json config = {{"pp_size", chart.ranks.size()},
                       {"vp_size", chart.num_chunks},
                       {"num_mbs", chart.num_micro_batches},
                       {"train_iters", 1},
                       {"time_unit", units.time},
                       {"memory_unit", units.memory}};
  write_file(folder / "config.json", config.dump(2) + "\n");
  for (std::size_t rank = 0; rank < chart.ranks.size(); ++rank) {
    Json record = {{"total", chart.ranks[rank].end}, {"memory", chart.ranks[rank].memory.value_or(0.0)}};
    for (const KindName& row : kKinds) {
      for (const std::string_view name : {"start", "end", "minibatch", "chunk"}) {
        record[fmt::format("{}_{}", row.prefix, name)] = Json::array();
      }
      for (const Box& box : chart.ranks[rank].boxes) {
        const BoxKind kind = box.kind == BoxKind::kWholeBackward ? BoxKind::kBackward : box.kind;
        if (kind != row.kind) continue;
        record[fmt::format("{}_start", row.prefix)].push_back(box.start);
        record[fmt::format("{}_end", row.prefix)].push_back(box.end);
        record[fmt::format("{}_minibatch", row.prefix)].push_back(box.micro_batch);
        record[fmt::format("{}_chunk", row.prefix)].push_back(box.chunk);
      }
    }
    write_file(rank_file(folder, static_cast<int>(rank)), Json{{iteration, record}}.dump() + "\n");
  }
}

}  // namespace primus::view
