#pragma once
// Work shared among threads as they become free.
#include <atomic>

#include "ops/dtype.hpp"

namespace primus::ops {

/// body(worker, unit) for every unit; a worker takes the next one when it is free, so that a thread whose core is
/// wanted elsewhere holds nobody up for long. What a unit computes must not depend on its worker. Inside a parallel
/// region the caller does all units itself.
template <typename Body>
void for_each_unit(std::int64_t units, const Body& body) {
  std::atomic<std::int64_t> next{0};
  at::parallel_for(0, std::min<std::int64_t>(units, at::get_num_threads()), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t worker = begin; worker < end; ++worker) {
                       for (std::int64_t unit = next++; unit < units; unit = next++) body(worker, unit);
                     }
                   });
}

}  // namespace primus::ops
