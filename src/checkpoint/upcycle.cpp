#include "checkpoint/upcycle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/philox.hpp"
#include "checkpoint/convert.hpp"
#include "checkpoint/refuse.hpp"

namespace primus::checkpoint {
namespace {

using model::ParameterDescriptor;

/// Mean and standard deviation of a matrix.
struct Moments {
  double mean = 0.0;
  double std = 0.0;
};

std::span<std::byte> as_bytes(std::vector<double>& values) {
  return std::as_writable_bytes(std::span(values));
}

Moments moments(const Weights& weights, std::size_t parameter) {
  double sum = 0.0;
  double squares = 0.0;
  weights.stream(parameter, DType::kFloat64, [&](std::span<const std::byte> bytes) {
    const std::span values(reinterpret_cast<const double*>(bytes.data()), bytes.size() / sizeof(double));
    for (const double value : values) {
      sum += value;
      squares += value * value;
    }
  });
  const auto count = static_cast<double>(weights.parameters()[parameter].num_elements());
  const double mean = sum / count;
  return {mean, std::sqrt(std::max(0.0, squares / count - mean * mean))};
}

/// Units of expert `expert` that are drawn anew, as a mask over its width. Gate, up and down share it.
std::vector<bool> dropped_units(const UpcycleOptions& options, int layer, std::int64_t expert, std::int64_t width) {
  std::vector<bool> is_dropped(static_cast<std::size_t>(width), false);
  const auto count = static_cast<std::int64_t>(std::floor(options.drop_fraction * static_cast<double>(width)));
  if (count == 0) return is_dropped;
  const Philox generator(options.seed, fmt::format("upcycle.drop.{}.{}", layer, expert));
  std::vector<std::int64_t> order(static_cast<std::size_t>(width));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto left = static_cast<double>(width - i);
    const auto step = static_cast<std::int64_t>(generator.uniform(static_cast<std::uint64_t>(i)) * left);
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(i + std::min(step, width - i - 1))]);
    is_dropped[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = true;
  }
  return is_dropped;
}

enum class Source { kDense, kRouter, kZeros, kInput, kOutput, kInputBias, kOutputBias };

/// Where a parameter of the model with experts comes from.
struct Origin {
  Source source = Source::kDense;
  std::size_t dense = 0;  // the dense parameter
};

class UpcycledWeights final : public Weights {
 public:
  UpcycledWeights(std::vector<ParameterDescriptor> parameters, const StoredModel& dense, const model::ModelSpec& spec,
                  const UpcycleOptions& options)
      : Weights(std::move(parameters)),
        dense_(*dense.weights),
        spec_(spec),
        options_(options),
        shape_(upcycle_shape(dense.spec, spec, dense.folder.string())) {
    std::vector<Problem> problems;
    for (const ParameterDescriptor& parameter : Weights::parameters()) {
      const auto origin = origin_of(parameter);
      if (!origin) {
        problems.push_back(
            problem_of({dense.folder.string(), parameter.name, "has nothing in the dense model that it could come from",
                        shape_text(parameter.shape)}));
      }
      origins_.push_back(origin.value_or(Origin{}));
    }
    if (!problems.empty()) throw ConfigError(std::move(problems));
  }

  DType dtype(std::size_t parameter) const override {
    if (parameters()[parameter].trained == model::Trained::kNo) return DType::kFloat32;
    return dense_.dtype(origins_[parameter].dense);
  }

  void stream(std::size_t parameter, DType dtype, const Sink& sink) const override {
    if (origins_[parameter].source == Source::kDense) return dense_.stream(origins_[parameter].dense, dtype, sink);
    const ParameterDescriptor& made = parameters()[parameter];
    const bool is_row = made.shape.size() == 1;
    const std::int64_t columns = is_row ? 1 : made.shape.back();
    std::vector<double> row;
    std::vector<std::byte> converted(static_cast<std::size_t>(columns * size_bytes(dtype)));
    for (std::int64_t i = 0; i < made.num_elements() / columns; ++i) {
      row.assign(static_cast<std::size_t>(columns), 0.0);
      fill_row(parameter, i, row);
      const Converted result = convert(DType::kFloat64, as_bytes(row), dtype, converted);
      if (result.num_overflowed > 0)
        throw UserError(fmt::format("{}: a value is too large for {}", made.name, primus::name(dtype)));
      sink(converted);
    }
  }

  void read(std::size_t parameter, std::int64_t begin, DType dtype, std::span<std::byte> out) const override {
    std::int64_t reached = 0;  // bytes of the parameter
    const std::int64_t first = begin * size_bytes(dtype);
    const std::int64_t last = first + std::ssize(out);
    stream(parameter, dtype, [&](std::span<const std::byte> bytes) {
      const std::int64_t from = std::max(first, reached);
      const std::int64_t to = std::min(last, reached + std::ssize(bytes));
      if (from < to) std::copy_n(bytes.begin() + (from - reached), to - from, out.begin() + (from - first));
      reached += std::ssize(bytes);
    });
  }

 private:
  std::optional<Origin> origin_of(const ParameterDescriptor& parameter) const {
    if (const auto same = dense_.find(parameter.name)) {
      if (dense_.parameters()[*same].shape == parameter.shape) return Origin{Source::kDense, *same};
      return std::nullopt;
    }
    const auto from = [&](Source source, const char* ours, const char* theirs) -> std::optional<Origin> {
      std::string name = parameter.name;
      const std::size_t at = name.find(ours);
      if (at == std::string::npos) return std::nullopt;
      name.replace(at, std::string_view(ours).size(), theirs);
      const auto dense = dense_.find(name);
      return dense ? std::optional(Origin{source, *dense}) : std::nullopt;
    };
    if (const auto found = from(Source::kRouter, "mlp.router.weight", "mlp.linear_fc1.weight")) return found;
    if (const auto found = from(Source::kZeros, "mlp.router.bias", "mlp.linear_fc1.weight")) return found;
    if (const auto found = from(Source::kZeros, "mlp.router.expert_bias", "mlp.linear_fc1.weight")) return found;
    if (const auto found = from(Source::kInput, "mlp.experts.linear_fc1.weight", "mlp.linear_fc1.weight")) return found;
    if (const auto found = from(Source::kOutput, "mlp.experts.linear_fc2.weight", "mlp.linear_fc2.weight"))
      return found;
    if (const auto found = from(Source::kInputBias, "mlp.experts.linear_fc1.bias", "mlp.linear_fc1.bias")) return found;
    return from(Source::kOutputBias, "mlp.experts.linear_fc2.bias", "mlp.linear_fc2.bias");
  }

  void fill_row(std::size_t parameter, std::int64_t row, std::vector<double>& values) const {
    const Source source = origins_[parameter].source;
    switch (source) {
      case Source::kRouter:
        return fill_router(parameter, row, values);
      case Source::kInput:
      case Source::kInputBias:
        return fill_input(parameter, row, values);
      case Source::kOutput:
        return fill_output(parameter, row, values);
      case Source::kOutputBias:
        return dense_.read(origins_[parameter].dense, 0, DType::kFloat64, as_bytes(values));
      default:
        return;  // zeros
    }
  }

  /// Shards of one copy get the same row, so that they are chosen together.
  void fill_router(std::size_t parameter, std::int64_t expert, std::vector<double>& values) const {
    const Philox generator(options_.seed, parameters()[parameter].name);
    const std::int64_t copy = expert / shape_.granularity;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto index = static_cast<std::uint64_t>(copy) * values.size() + i;
      values[i] = spec_.init_std * generator.normal(index);
    }
  }

  std::int64_t width() const { return spec_.moe->ffn_hidden_size; }

  /// A unit's row of gate or up. `row` counts over experts and their rows. Biases are [E, rows]: a row is an expert.
  void fill_input(std::size_t parameter, std::int64_t row, std::vector<double>& values) const {
    const bool is_bias = origins_[parameter].source == Source::kInputBias;
    const std::int64_t rows = spec_.mlp_input_rows(width());
    if (is_bias) {
      for (std::int64_t unit = 0; unit < rows; ++unit) {
        dense_.read(origins_[parameter].dense, dense_input_row(row, unit), DType::kFloat64,
                    as_bytes(values).subspan(static_cast<std::size_t>(unit) * sizeof(double), sizeof(double)));
      }
      for (double& value : values) value *= shape_.weight_scale;
      return;
    }
    const std::int64_t expert = row / rows;
    const std::int64_t unit = row % rows;
    const std::int64_t columns = std::ssize(values);
    dense_.read(origins_[parameter].dense, dense_input_row(expert, unit) * columns, DType::kFloat64, as_bytes(values));
    change(parameter, expert, row, values, [&](std::size_t) { return unit % width(); });
  }

  /// The dense row that row `unit` of an expert's gate and up comes from.
  std::int64_t dense_input_row(std::int64_t expert, std::int64_t unit) const {
    const std::int64_t half = unit / width();  // gate or up
    const std::int64_t shard = expert % shape_.granularity;
    return half * width() * shape_.granularity + shard * width() + unit % width();
  }

  void fill_output(std::size_t parameter, std::int64_t row, std::vector<double>& values) const {
    const std::int64_t rows = parameters()[parameter].shape[1];
    const std::int64_t expert = row / rows;
    const std::int64_t dense_columns = width() * shape_.granularity;
    const std::int64_t begin = (row % rows) * dense_columns + (expert % shape_.granularity) * width();
    dense_.read(origins_[parameter].dense, begin, DType::kFloat64, as_bytes(values));
    change(parameter, expert, row, values, [](std::size_t column) { return static_cast<std::int64_t>(column); });
  }

  /// Draw dropped units anew, add noise, scale. `unit_of`: the unit that a column belongs to.
  template <typename UnitOf>
  void change(std::size_t parameter, std::int64_t expert, std::int64_t row, std::vector<double>& values,
              const UnitOf& unit_of) const {
    if (options_.drop_fraction > 0.0 || options_.noise_std > 0.0) {
      const Moments& dense = moments_of(origins_[parameter].dense);
      const std::vector<bool>& is_dropped = mask(parameters()[parameter].layer, expert);
      const Philox generator(options_.seed, "upcycle.noise." + parameters()[parameter].name);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double normal = generator.normal(static_cast<std::uint64_t>(row) * values.size() + i);
        if (is_dropped[static_cast<std::size_t>(unit_of(i))]) {
          values[i] = dense.mean + dense.std * normal;
        } else {
          values[i] += options_.noise_std * dense.std * normal;
        }
      }
    }
    for (double& value : values) value *= shape_.weight_scale;
  }

  const Moments& moments_of(std::size_t dense) const {
    if (moments_.parameter != dense) moments_ = {dense, moments(dense_, dense)};
    return moments_.value;
  }

  const std::vector<bool>& mask(int layer, std::int64_t expert) const {
    if (mask_.layer != layer || mask_.expert != expert)
      mask_ = {layer, expert, dropped_units(options_, layer, expert, width())};
    return mask_.value;
  }

  // The last ones used: rows come in order.
  struct KnownMoments {
    std::size_t parameter = static_cast<std::size_t>(-1);
    Moments value;
  };
  struct KnownMask {
    int layer = -1;
    std::int64_t expert = -1;
    std::vector<bool> value;
  };

  const Weights& dense_;
  model::ModelSpec spec_;
  UpcycleOptions options_;
  UpcycleShape shape_;
  std::vector<Origin> origins_;
  mutable KnownMoments moments_;
  mutable KnownMask mask_;
};

}  // namespace

UpcycleShape upcycle_shape(const model::ModelSpec& dense, const model::ModelSpec& experts, const std::string& where) {
  const auto fault = [&](const char* key, std::string message, std::string expected, std::int64_t found) {
    refuse({where, key, std::move(message), std::move(expected), std::to_string(found)});
  };
  if (dense.moe)
    fault("num_experts", "upcycling starts from a dense model", "no experts", dense.moe->router.num_experts);
  PRIMUS_CHECK(experts.moe.has_value(), "upcycling to a model without experts");
  const model::MoeSpec& moe = *experts.moe;
  UpcycleShape shape;
  if (moe.ffn_hidden_size < 1 || dense.dense_ffn_hidden_size % moe.ffn_hidden_size != 0)
    fault("moe_ffn_hidden_size", "does not divide the dense model's MLP",
          fmt::format("a divisor of {}", dense.dense_ffn_hidden_size), moe.ffn_hidden_size);
  shape.granularity = dense.dense_ffn_hidden_size / moe.ffn_hidden_size;
  if (moe.router.num_experts % shape.granularity != 0)
    fault("num_experts", "experts are whole copies of the dense MLP",
          fmt::format("a multiple of {}", shape.granularity), moe.router.num_experts);
  if (moe.router.top_k % shape.granularity != 0)
    fault("moe_router_topk", "a token uses whole copies of the dense MLP",
          fmt::format("a multiple of {}", shape.granularity), moe.router.top_k);
  shape.copies = moe.router.num_experts / shape.granularity;
  const bool is_pre = moe.router.softmax_order == model::SoftmaxOrder::kPre;
  const auto granularity = static_cast<double>(shape.granularity);
  // What a token's experts add up to, against the dense MLP, at uniform probabilities.
  const double activation =
      is_pre ? static_cast<double>(shape.copies) * granularity * granularity / static_cast<double>(moe.router.top_k)
             : granularity;
  shape.weight_scale = experts.mlp_gate == model::Part::kPresent ? std::cbrt(activation) : std::sqrt(activation);
  return shape;
}

std::unique_ptr<Weights> upcycle(const StoredModel& dense, const model::ModelSpec& spec,
                                 const UpcycleOptions& options) {
  return std::make_unique<UpcycledWeights>(parameters_of(spec), dense, spec, options);
}

}  // namespace primus::checkpoint
