#include "checkpoint/average.hpp"

#include <fmt/format.h>

#include "base/text.hpp"
#include "checkpoint/convert.hpp"

namespace primus::checkpoint {
namespace {

class MeanWeights final : public Weights {
 public:
  MeanWeights(const std::vector<StoredModel>& models, const std::vector<double>& shares)
      : Weights(models.back().weights->parameters()), models_(models), shares_(shares) {
    for (const StoredModel& model : models) {
      std::vector<std::size_t>& places = places_.emplace_back();
      for (const model::ParameterDescriptor& parameter : parameters())
        places.push_back(*model.weights->find(parameter.name));
    }
  }

  DType dtype(std::size_t parameter) const override { return models_.back().weights->dtype(parameter); }

  void read(std::size_t parameter, std::int64_t begin, DType dtype, std::span<std::byte> out) const override {
    const std::size_t count = out.size() / static_cast<std::size_t>(size_bytes(dtype));
    std::vector<double> sum(count, 0.0);
    std::vector<double> values(count);
    for (std::size_t m = 0; m < models_.size(); ++m) {
      models_[m].weights->read(places_[m][parameter], begin, DType::kFloat64,
                               std::as_writable_bytes(std::span(values)));
      for (std::size_t i = 0; i < count; ++i) sum[i] += shares_[m] * values[i];
    }
    const Converted converted = convert(DType::kFloat64, std::as_bytes(std::span(sum)), dtype, out);
    if (converted.num_overflowed == 0) return;
    throw UserError(fmt::format("{}: {} values of the mean are too large for {}", parameters()[parameter].name,
                                format_count(converted.num_overflowed), primus::name(dtype)));
  }

 private:
  const std::vector<StoredModel>& models_;
  std::vector<double> shares_;
  std::vector<std::vector<std::size_t>> places_;  // of each model: its number of each parameter
};

}  // namespace

std::unique_ptr<Weights> average(const std::vector<StoredModel>& models, const std::vector<double>& shares) {
  PRIMUS_CHECK(!models.empty() && models.size() == shares.size(), "{} models, {} shares", models.size(), shares.size());
  for (const StoredModel& model : models) {
    check_parameters(model.weights->parameters(), models.back().weights->parameters(), model.folder.string(),
                     models.back().folder.string());
  }
  return std::make_unique<MeanWeights>(models, shares);
}

}  // namespace primus::checkpoint
