#include "view/pipeline_colours.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace primus::view {
namespace {

Rgb towards_white(Rgb colour, double share) {
  const auto mix = [share](int value) { return static_cast<int>(std::lround(value + (255 - value) * share)); };
  return {mix(colour.red), mix(colour.green), mix(colour.blue)};
}

}  // namespace

std::string Rgb::hex() const {
  return fmt::format("#{:02x}{:02x}{:02x}", red, green, blue);
}

bool Rgb::is_light() const {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140.0;
}

Rgb pass_colour(BoxKind kind, int chunk, int num_chunks) {
  constexpr Rgb kForward{0, 90, 160};
  constexpr Rgb kBackward{230, 145, 20};
  constexpr Rgb kWeightGrad{20, 140, 105};
  constexpr double kLightest = 0.6;
  const Rgb first = kind == BoxKind::kForward ? kForward : kind == BoxKind::kWeightGrad ? kWeightGrad : kBackward;
  return num_chunks < 2 ? first : towards_white(first, kLightest * chunk / (num_chunks - 1));
}

Rgb micro_batch_colour(int micro_batch) {
  // Okabe and Ito's palette, grey in the place of black.
  constexpr std::array<Rgb, kNumMicroBatchColours> kColours = {{{0, 114, 178},
                                                                {230, 159, 0},
                                                                {0, 158, 115},
                                                                {204, 121, 167},
                                                                {86, 180, 233},
                                                                {213, 94, 0},
                                                                {240, 228, 66},
                                                                {120, 120, 120}}};
  return kColours[static_cast<std::size_t>(micro_batch % kNumMicroBatchColours)];
}

}  // namespace primus::view
