#include "ops/dropout/dropout.hpp"

#include "ops/not_on_gpu.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kElementsPerTask = 4096;  // a block of four numbers costs some 20 ns
constexpr std::uint64_t kWordsPerBlock = 4;

/// body(h, is it kept?) for the elements of a token, whose numbers begin at `first`.
template <typename Body>
void for_each_element(const Philox& philox, std::uint64_t first, std::int64_t width, std::uint64_t threshold,
                      const Body& body) {
  std::array<std::uint32_t, kWordsPerBlock> words{};
  for (std::int64_t h = 0; h < width; ++h) {
    const std::uint64_t number = first + static_cast<std::uint64_t>(h);
    if (h == 0 || number % kWordsPerBlock == 0) words = philox.words(number / kWordsPerBlock);
    body(h, words[number % kWordsPerBlock] >= threshold);
  }
}

template <typename From, typename To>
void drop(const Tensor& x_TH, const TokenNoise& noise, double probability, Tensor& y_TH, Write write) {
  using Acc = acc_t<To>;
  const std::int64_t width = x_TH.size(1);
  const Philox philox(noise.seed, noise.stream);
  const std::uint64_t threshold = dropout_threshold(probability);
  const auto factor = static_cast<Acc>(1.0 / (1.0 - probability));
  const From* x = x_TH.data_ptr<From>();
  To* y = y_TH.data_ptr<To>();
  at::parallel_for(0, x_TH.size(0), 1 + kElementsPerTask / (1 + width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const auto first = static_cast<std::uint64_t>((noise.first_token + t) * width);
      for_each_element(philox, first, width, threshold, [&](std::int64_t h, bool is_kept) {
        const std::int64_t at = t * width + h;
        const Acc before = write == Write::kAccumulate ? static_cast<Acc>(y[at]) : Acc(0);
        y[at] = to_storage<To>(before + (is_kept ? static_cast<Acc>(x[at]) * factor : Acc(0)));
      });
    }
  });
}

}  // namespace

std::uint64_t dropout_threshold(double probability) {
  return static_cast<std::uint64_t>(std::llround(probability * 0x1.0p32));
}

void token_dropout(const Tensor& x_TH, const TokenNoise& noise, double probability, Tensor& y_TH, Write write) {
  const ZoneScope zone(Zone::kDropout);
  PRIMUS_CHECK(x_TH.sizes() == y_TH.sizes() && x_TH.dim() == 2 && x_TH.is_contiguous() && y_TH.is_contiguous(),
               "dropout: tensors must be [T, H], contiguous");
  PRIMUS_CHECK(probability >= 0.0 && probability < 1.0, "dropout: probability {}", probability);
  if (x_TH.is_cuda()) throw_not_on_gpu("hidden_dropout");
  dispatch_floating(x_TH.scalar_type(), "token_dropout", [&](auto from) {
    using From = typename decltype(from)::type;
    if (y_TH.scalar_type() == x_TH.scalar_type()) return drop<From, From>(x_TH, noise, probability, y_TH, write);
    PRIMUS_CHECK(y_TH.scalar_type() == at::kFloat, "dropout: {} into {}", c10::toString(x_TH.scalar_type()),
                 c10::toString(y_TH.scalar_type()));
    drop<From, float>(x_TH, noise, probability, y_TH, write);
  });
}

}  // namespace primus::ops
