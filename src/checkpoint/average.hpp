#pragma once
// The mean of several models' weights, as of the last checkpoints of a run (arXiv 1803.05407).
#include "checkpoint/weights.hpp"

namespace primus::checkpoint {

/// The weighted mean, made when it is asked for: summed in fp64 and rounded once. `shares` add up to 1; they are
/// those of `models`, which must outlive the result. Types are those of the last model. Throws ConfigError that names
/// every parameter which is not in all of them in one shape.
std::unique_ptr<Weights> average(const std::vector<StoredModel>& models, const std::vector<double>& shares);

}  // namespace primus::checkpoint
