#include "view/pp_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/visible.hpp"
#include "schedule/algorithms.hpp"

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

/// One rank's record of one iteration.
class Record {
 public:
  Record(const std::filesystem::path& file, const std::string& iteration, const Json& json)
      : file_(file), iteration_(iteration), json_(json) {
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

  bool has_ids() const {
    const auto ids = json_.find("fwd_minibatch");
    return ids != json_.end() && ids->is_array() && !ids->empty();
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
              .micro_batch = id(row.prefix, "minibatch", i, kMaxCount),
              .chunk = id(row.prefix, "chunk", i, kMaxChunks - 1),
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
};

/// Micro-batches and chunks in Megatron's own order, for files without them. A rank whose boxes are not as many as that
/// order has keeps the order in which they stand.
void number_boxes(ChartRank& rank, int index, const schedule::Schedule* schedule) {
  for (const BoxKind kind : {BoxKind::kForward, BoxKind::kBackward}) {
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
  }
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

struct Sizes {
  int num_ranks = 0;  // 0: as many as there are files
  int num_chunks = 1;
  int num_micro_batches = 0;  // 0: as many as there are
};

Sizes sizes_of(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return {};
  const Json json = read_json(file);
  return {.num_ranks = count_in(file, json, "pp_size", "pp_size", 0),
          .num_chunks = count_in(file, json, "vp_size", "vpp_size", 1, kMaxChunks),
          .num_micro_batches = count_in(file, json, "num_mbs", "micro_batches", 0)};
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

void finish(PpData& data, const Sizes& sizes, bool has_ids) {
  PipelineChart& chart = data.chart;
  chart.num_chunks = sizes.num_chunks;
  const auto num_forwards =
      static_cast<int>(std::count_if(chart.ranks[0].boxes.begin(), chart.ranks[0].boxes.end(),
                                     [](const Box& box) { return box.kind == BoxKind::kForward; }));
  chart.num_micro_batches =
      std::max(1, sizes.num_micro_batches > 0 ? sizes.num_micro_batches : num_forwards / sizes.num_chunks);
  const auto num_ranks = static_cast<int>(chart.ranks.size());
  std::optional<schedule::Schedule> order;
  if (!has_ids) order = megatrons_order(num_ranks, chart.num_chunks, chart.num_micro_batches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    ChartRank& row = chart.ranks[static_cast<std::size_t>(rank)];
    if (!has_ids) number_boxes(row, rank, order ? &*order : nullptr);
    mark_whole_backwards(row);
    sum_up(row);
    chart.step = std::max(chart.step, row.end);
    for (const Box& box : row.boxes) {
      chart.num_chunks = std::max(chart.num_chunks, box.chunk + 1);
      chart.num_micro_batches = std::max(chart.num_micro_batches, box.micro_batch + 1);
    }
  }
  if (!has_ids) chart.note = "micro-batches are numbered in Megatron's own order: the files do not name them";
}

}  // namespace

PpData read_pp_data(const std::filesystem::path& folder, const std::string& iteration) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    refuse(folder, "", "is no folder", "a folder of dump_pp_data");
  }
  const Sizes sizes = sizes_of(folder);
  PpData data;
  bool has_ids = false;
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
    const Record row(file, data.iteration, *record);
    has_ids = has_ids || row.has_ids();
    data.chart.ranks.push_back(row.rank());
  }
  if (data.chart.ranks.empty()) refuse(folder, "", "holds no pp_rank_0.json", "files of dump_pp_data");
  data.chart.name = folder.filename().empty() ? folder.parent_path().filename().string() : folder.filename().string();
  finish(data, sizes, has_ids);
  return data;
}

void write_pp_data(const PipelineChart& chart, const std::string& iteration, const std::filesystem::path& folder) {
  make_folder(folder);
  const Json config = {{"pp_size", chart.ranks.size()},
                       {"vp_size", chart.num_chunks},
                       {"num_mbs", chart.num_micro_batches},
                       {"train_iters", 1}};
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
