#include "engine/matrix_rules.hpp"

#include <ATen/TensorOperators.h>

#include "ops/muon/muon.hpp"

namespace primus::engine {
namespace {

// Rows of a, b, c, as the Emerging-Optimizers package has them (its papers: Jordan's Muon, Polar Express, AOL).
std::vector<ops::NewtonSchulzStep> newton_schulz_steps(const model::MuonSpec& muon) {
  using Steps = std::vector<ops::NewtonSchulzStep>;
  static const Steps kSimple = {{3.4445, -4.7750, 2.0315}};
  static const Steps kQuintic = {{4.0848, -6.8946, 2.9270},
                                 {3.9505, -6.3029, 2.6377},
                                 {3.7418, -5.5913, 2.3037},
                                 {2.8769, -3.1427, 1.2046},
                                 {2.8366, -3.0525, 1.2012}};
  static const Steps kPolarExpress = {{8.2051, -22.9019, 16.4607}, {4.0664, -2.8612, 0.5184}, {3.9096, -2.8234, 0.5250},
                                      {3.2856, -2.4153, 0.4853},   {2.2779, -1.6198, 0.3985}, {1.8726, -1.2307, 0.3585},
                                      {1.8564, -1.2132, 0.3568},   {1.8750, -1.2500, 0.3750}};
  static const Steps kAol = {
      {4.0098, -7.0585, 2.4635}, {3.4585, -5.5479, 2.5959}, {2.7573, -3.2939, 1.4254}, {2.7215, -3.0494, 1.3169}};
  const Steps& rows = muon.coefficients == model::MuonCoefficients::kSimple         ? kSimple
                      : muon.coefficients == model::MuonCoefficients::kQuintic      ? kQuintic
                      : muon.coefficients == model::MuonCoefficients::kPolarExpress ? kPolarExpress
                                                                                    : kAol;
  Steps steps;
  for (std::int64_t i = 0; i < muon.num_steps; ++i) {
    // Polar Express repeats its last row, the others begin again.
    const std::int64_t row = muon.coefficients == model::MuonCoefficients::kPolarExpress
                                 ? std::min<std::int64_t>(i, std::ssize(rows) - 1)
                                 : i % std::ssize(rows);
    steps.push_back(rows[static_cast<std::size_t>(row)]);
  }
  return steps;
}

double muon_factor(const model::MuonSpec& muon, std::int64_t outputs, std::int64_t inputs) {
  const auto out = static_cast<double>(outputs);
  const auto in = static_cast<double>(inputs);
  switch (muon.scale) {
    case model::MuonScale::kSpectral:
      return muon.extra_scale * std::sqrt(std::max(out, in));
    case model::MuonScale::kUnitRmsNorm:
      return muon.extra_scale * std::sqrt(out / in);
    case model::MuonScale::kShape:
      return muon.extra_scale * std::sqrt(std::max(1.0, out / in));
  }
  return 0.0;
}

/// Rows of the matrices that are made orthogonal on their own.
std::vector<std::int64_t> muon_rows(const model::MuonSpec& muon, const model::ParameterDescriptor& parameter) {
  const bool is_qkv = parameter.name.ends_with("linear_qkv.weight");
  if (is_qkv && muon.split_qkv == model::MuonSpec::SplitQkv::kOn) return parameter.shards.at(0).segments;
  return {parameter.shape[parameter.shape.size() - 2]};
}

}  // namespace

at::Tensor muon_direction(const model::MuonSpec& muon, const model::ParameterDescriptor& parameter,
                          const at::Tensor& momentum) {
  const std::vector<ops::NewtonSchulzStep> steps = newton_schulz_steps(muon);
  std::vector<at::Tensor> parts;
  std::int64_t first = 0;
  for (const std::int64_t rows : muon_rows(muon, parameter)) {
    const at::Tensor part = momentum.narrow(-2, first, rows);
    parts.push_back(ops::newton_schulz(part, steps) * muon_factor(muon, rows, momentum.size(-1)));
    first += rows;
  }
  return at::cat(parts, -2);
}

at::Tensor adaptive_muon_direction(const model::MuonSpec& muon, const at::Tensor& direction,
                                   at::Tensor& second_moment) {
  second_moment.mul_(muon.second_decay).addcmul_(direction, direction, 1.0 - muon.second_decay);
  return direction / (second_moment.sqrt() + muon.second_epsilon);
}

}  // namespace primus::engine
