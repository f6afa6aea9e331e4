#include "data/sampler.hpp"

#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/philox.hpp"

namespace primus::data {

std::vector<std::int64_t> cyclic_order(std::uint64_t seed, std::int64_t epoch, std::int64_t size) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  const Philox random(seed, stream_id("data/cyclic") + static_cast<std::uint64_t>(epoch));
  for (std::uint64_t i = order.size(); i-- > 1;) {
    const auto words = random.words(i);
    const std::uint64_t word = std::uint64_t{words[1]} << 32 | words[0];
    // The upper half of the product is uniform in [0, i] but for a bias below (i + 1) / 2^64.
    __extension__ using Wide = unsigned __int128;
    std::swap(order[i], order[static_cast<std::size_t>(Wide{word} * (i + 1) >> 64)]);
  }
  return order;
}

Sampler::Sampler(DataloaderType type, std::uint64_t seed, std::int64_t num_samples)
    : type_(type), seed_(seed), num_samples_(num_samples) {}

std::int64_t Sampler::at(std::int64_t place) const {
  PRIMUS_CHECK(place >= 0 && num_samples_ > 0, "place {} of {}", place, num_samples_);
  if (type_ == DataloaderType::kSingle) {
    PRIMUS_CHECK(place < num_samples_, "place {} of {}", place, num_samples_);
    return place;
  }
  const std::int64_t epoch = place / num_samples_;
  const std::lock_guard lock(mutex_);
  if (epoch != epoch_) {
    order_ = cyclic_order(seed_, epoch, num_samples_);
    epoch_ = epoch;
  }
  return order_[static_cast<std::size_t>(place % num_samples_)];
}

}  // namespace primus::data
