#include "model/expert_rows.hpp"

#include <algorithm>
#include <cmath>

namespace primus::model {

std::int64_t balanced_rows(const MoeSpec& moe, std::int64_t tokens, const Sharding& sharding) {
  return moe.router.num_expert_rows(tokens) * sharding.expert_tensor;
}

std::int64_t most_rows(const MoeSpec& moe, std::int64_t tokens, const Sharding& sharding) {
  const RouterSpec& router = moe.router;
  // Every rank of the exchange sends here whatever its tokens' different choices allow.
  const std::int64_t experts = share(router.num_experts, sharding.expert);
  const std::int64_t senders = sharding.expert * sharding.expert_tensor;
  const std::int64_t chosen = senders * tokens * std::min(router.top_k, experts);
  if (!router.capacity) return chosen;
  // A capacity bounds each expert's rows from each sender. Padded experts compute it whole, whatever is chosen.
  const std::int64_t room = senders * experts * router.expert_capacity(tokens);
  return router.capacity->free_rows == ExpertCapacity::FreeRows::kKept ? room : std::min(chosen, room);
}

std::int64_t received_rows(const MoeSpec& moe, std::int64_t tokens, const Sharding& sharding) {
  const std::int64_t balanced = balanced_rows(moe, tokens, sharding);
  if (sharding.imbalance == 1.0) return balanced;
  const double wanted = std::ceil(static_cast<double>(balanced) * sharding.imbalance);
  const std::int64_t most = most_rows(moe, tokens, sharding);
  return wanted < static_cast<double>(most) ? static_cast<std::int64_t>(wanted) : most;
}

}  // namespace primus::model
