#include "schedule/algorithms.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "config/interleaving.hpp"
#include "schedule/order_search.hpp"
#include "schedule/orders.hpp"

namespace primus::schedule {
namespace {

constexpr std::array<AlgorithmInfo, 10> kAlgorithms = {{
    {Algorithm::k1F1B, "1f1b", "one forward, one backward", ChunkRule::kOne, Placement::kLoop},
    {Algorithm::kInterleaved, "1f1b-interleaved", "1F1B over several chunks a rank", ChunkRule::kMany,
     Placement::kLoop},
    {Algorithm::kOverlapped, "1f1b-overlap", "1F1B with token exchange beneath the other pass's arithmetic",
     ChunkRule::kMany, Placement::kLoop},
    {Algorithm::kZb1p, "zero-bubble", "ZB-H1: late weight gradients, memory of 1F1B", ChunkRule::kOne,
     Placement::kLoop},
    {Algorithm::kZbv, "zbv-formatted", "ZB-V: two chunks in a V, late weight gradients", ChunkRule::kTwo,
     Placement::kV},
    {Algorithm::kVHalf, "v-half", "V with half the memory of 1F1B", ChunkRule::kTwo, Placement::kV},
    {Algorithm::kVMin, "v-min", "V with a third of the memory of 1F1B", ChunkRule::kTwo, Placement::kV},
    {Algorithm::kDualPipeV, "dualpipe-v", "DualPipe on one V: forward and backward side by side", ChunkRule::kTwo,
     Placement::kV},
    {Algorithm::kSearched, "zero-bubble-heuristic", "the shortest order found for given times and memory",
     ChunkRule::kOne, Placement::kLoop},
    {Algorithm::kSearchedV, "1f1b-v", "1F1B on a V, whole backwards", ChunkRule::kTwo, Placement::kV},
}};

// Beyond this a table takes gigabytes; no pipeline is that long.
constexpr std::int64_t kMaxCells = 4'000'000;

int group_of(const Request& request) {
  return request.group == 0 ? request.num_ranks : request.group;
}

int warm_up(const Request& request, int rank) {
  const int extra = request.algorithm == Algorithm::kOverlapped ? 1 : 0;
  return 2 * (request.num_ranks - rank - 1) + (request.num_chunks - 1) * group_of(request) + extra;
}

/// Chunk activations that a rank of the schedule never exceeds.
int bound_of(const Request& request, int rank) {
  const int p = request.num_ranks;
  switch (request.algorithm) {
    case Algorithm::k1F1B:
      return p - rank;
    case Algorithm::kInterleaved:
    case Algorithm::kOverlapped:
      return warm_up(request, rank) + 1;
    case Algorithm::kZb1p:
      return p;
    case Algorithm::kZbv:
    case Algorithm::kSearchedV:
      return 2 * p;
    case Algorithm::kVHalf:
      return 2 * (p / 2 + 1);
    case Algorithm::kVMin:
      return 2 * ((p + 1) / 3 + 1);
    case Algorithm::kDualPipeV:
      return 2 * p + 1;
    case Algorithm::kSearched:
      return request.max_in_flight == 0 ? p : request.max_in_flight;
  }
  return 0;
}

std::vector<int> bounds_of(const Request& request) {
  const Shape shape = shape_of(request);
  std::vector<int> bounds;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    bounds.push_back(std::min(shape.num_micro_batches * shape.num_chunks, bound_of(request, rank)));
  }
  return bounds;
}

double length(const Shape& shape, const Order& order) {
  double end = 0.0;
  for (const std::vector<Span>& spans : timed(shape, order, unit_durations())) end = std::max(end, spans.back().end);
  return end;
}

FoundOrder searched(const Request& request) {
  const bool splits = request.algorithm != Algorithm::kSearchedV && request.algorithm != Algorithm::k1F1B &&
                      request.algorithm != Algorithm::kInterleaved;
  return search_order({.shape = shape_of(request),
                       .weight_grad = splits ? WeightGrad::kApart : WeightGrad::kIncluded,
                       .max_in_flight = bounds_of(request),
                       .durations = request.durations.value_or(unit_durations())});
}

/// With few micro-batches much of the published order is left out, and a search may do better.
Order zbv_order(const Request& request) {
  const Shape shape = shape_of(request);
  Order published = order_zbv(shape);
  if (shape.num_micro_batches >= 2 * shape.num_ranks - 1) return published;
  FoundOrder found = searched(request);
  return found.step < length(shape, published) ? std::move(found.order) : std::move(published);
}

Order order_of(const Request& request) {
  const Shape shape = shape_of(request);
  switch (request.algorithm) {
    case Algorithm::k1F1B:
      return order_1f1b(shape);
    case Algorithm::kInterleaved:
      return order_interleaved(shape, {.group = group_of(request)});
    case Algorithm::kOverlapped:
      return order_interleaved(
          shape, {.group = group_of(request), .pairing = Pairing::kWithNext, .weight_grad = request.weight_grad});
    case Algorithm::kZb1p:
      return order_zb1p(shape);
    case Algorithm::kZbv:
      return zbv_order(request);
    case Algorithm::kVHalf:
      return order_v_block(shape, VBlock::kHalf);
    case Algorithm::kVMin:
      return order_v_block(shape, VBlock::kMin);
    case Algorithm::kDualPipeV:
      return order_dualpipe_v(shape);
    case Algorithm::kSearched:
    case Algorithm::kSearchedV:
      return searched(request).order;
  }
  return {};
}

Schedule finished(const Request& request, const Order& order) {
  Schedule schedule = with_messages(shape_of(request), order, request.gather);
  schedule.max_in_flight = bounds_of(request);
  verify(schedule);
  return schedule;
}

/// The search knows no pairs, and what it found already is the shortest that it finds.
bool can_be_searched(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kOverlapped:
    case Algorithm::kDualPipeV:
    case Algorithm::kSearched:
    case Algorithm::kSearchedV:
      return false;
    default:
      return true;
  }
}

std::optional<ShapeFault> size_fault(const Request& request) {
  using About = ShapeFault::About;
  if (request.num_ranks < 1) {
    return ShapeFault{About::kRanks, "a pipeline has at least one rank", "integer >= 1",
                      std::to_string(request.num_ranks), ""};
  }
  if (request.num_micro_batches < 1) {
    return ShapeFault{About::kMicroBatches, "a step has at least one micro-batch", "integer >= 1",
                      std::to_string(request.num_micro_batches), ""};
  }
  const std::int64_t cells = std::int64_t{request.num_ranks} * std::max(1, request.num_chunks);
  if (cells > kMaxCells || cells * request.num_micro_batches > kMaxCells) {
    return ShapeFault{About::kSize, "the table would be too large",
                      fmt::format("at most {} stages times micro-batches", kMaxCells),
                      fmt::format("{} x {}", cells, request.num_micro_batches), ""};
  }
  return std::nullopt;
}

std::optional<ShapeFault> chunk_fault(const Request& request) {
  const AlgorithmInfo& row = info(request.algorithm);
  if (row.chunks == ChunkRule::kOne && request.num_chunks != 1) {
    return ShapeFault{ShapeFault::About::kChunks, fmt::format("{} has one chunk on each rank", row.name), "1",
                      std::to_string(request.num_chunks), ""};
  }
  if (row.chunks == ChunkRule::kTwo && request.num_chunks != 2) {
    return ShapeFault{ShapeFault::About::kChunks, fmt::format("{} has two chunks on each rank", row.name), "2",
                      std::to_string(request.num_chunks), ""};
  }
  // One rank has no stages to interleave, and pairs work there with a single chunk.
  if (row.chunks == ChunkRule::kMany && request.num_chunks < 2 && request.num_ranks > 1) {
    return ShapeFault{ShapeFault::About::kChunks, fmt::format("{} has several chunks on each rank", row.name),
                      "integer >= 2", std::to_string(request.num_chunks), "or 1f1b"};
  }
  if (request.num_chunks < 1) {
    return ShapeFault{ShapeFault::About::kChunks, "a rank has at least one chunk", "integer >= 1",
                      std::to_string(request.num_chunks), ""};
  }
  return std::nullopt;
}

std::optional<ShapeFault> group_fault(const Request& request) {
  if (info(request.algorithm).chunks != ChunkRule::kMany) return std::nullopt;
  const config::Interleaving shape{group_of(request), request.num_ranks, request.num_micro_batches};
  if (shape.group < shape.ranks) {
    return ShapeFault{
        ShapeFault::About::kGroup,
        fmt::format("groups smaller than the {} pipeline ranks: a chunk would wait for itself", shape.ranks),
        fmt::format("at least {}", shape.ranks), std::to_string(shape.group), ""};
  }
  if (shape.is_legal()) return std::nullopt;
  return ShapeFault{
      ShapeFault::About::kMicroBatches,
      fmt::format("{} pipeline ranks cannot interleave them in groups of {}", shape.ranks, shape.group),
      fmt::format("a multiple of {}, or one that leaves a last group of at least {}", shape.group, shape.ranks),
      std::to_string(shape.micro_batches), fmt::format("nearest: {}", shape.nearest())};
}

}  // namespace

std::span<const AlgorithmInfo> algorithms() {
  return kAlgorithms;
}

const AlgorithmInfo& info(Algorithm algorithm) {
  return *std::find_if(kAlgorithms.begin(), kAlgorithms.end(),
                       [algorithm](const AlgorithmInfo& row) { return row.algorithm == algorithm; });
}

const AlgorithmInfo* find_algorithm(std::string_view name) {
  const auto* const row = std::find_if(kAlgorithms.begin(), kAlgorithms.end(),
                                       [name](const AlgorithmInfo& candidate) { return candidate.name == name; });
  return row == kAlgorithms.end() ? nullptr : row;
}

Shape shape_of(const Request& request) {
  return {request.num_ranks, request.num_micro_batches, request.num_chunks, info(request.algorithm).placement};
}

std::optional<ShapeFault> fault_of(const Request& request) {
  if (auto fault = size_fault(request)) return fault;
  if (auto fault = chunk_fault(request)) return fault;
  if (auto fault = group_fault(request)) return fault;
  if (request.algorithm == Algorithm::kSearched && request.max_in_flight < 0) {
    return ShapeFault{ShapeFault::About::kMemory, "a rank holds at least one activation", "integer >= 1",
                      std::to_string(request.max_in_flight), ""};
  }
  return std::nullopt;
}

Order compute_order(const Request& request) {
  const auto fault = fault_of(request);
  PRIMUS_CHECK(!fault, "{}", fault->message);
  return order_of(request);
}

Schedule build(const Request& request) {
  return finished(request, compute_order(request));
}

std::optional<Schedule> build_better(const Request& request) {
  const Shape shape = shape_of(request);
  const double usual = length(shape, compute_order(request));
  std::optional<Order> better;
  if (request.algorithm == Algorithm::kVMin) {
    better = shorter_v_block(shape, VBlock::kMin, bound_of(request, 0), usual);
  } else if (request.algorithm == Algorithm::kVHalf) {
    better = shorter_v_block(shape, VBlock::kHalf, bound_of(request, 0), usual);
  }
  if (can_be_searched(request.algorithm)) {
    FoundOrder found = searched(request);
    if (found.step < (better ? length(shape, *better) : usual)) better = std::move(found.order);
  }
  if (!better) return std::nullopt;
  return finished(request, *better);
}

}  // namespace primus::schedule
