#include "projection/verdict.hpp"

namespace primus::projection {

std::string_view name(Fit fit) {
  switch (fit) {
    case Fit::kFits:
      return "fits";
    case Fit::kBarely:
      return "fits barely";
    case Fit::kNot:
      return "does not fit";
  }
  return "?";
}

std::int64_t uncertainty(const RankMemory& rank) {
  return (rank.bytes(Category::kDispatch) + rank.bytes(Category::kCommunication) + rank.bytes(Category::kWorkingSet) +
          rank.bytes(Category::kFramework)) /
         4;
}

Fit fit_of(const RankMemory& rank, std::int64_t device_bytes) {
  const std::int64_t room = device_bytes - rank.total();
  if (room < 0) return Fit::kNot;
  return room < uncertainty(rank) ? Fit::kBarely : Fit::kFits;
}

}  // namespace primus::projection
