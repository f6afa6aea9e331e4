#include "checkpoint/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/convert.hpp"

namespace primus::checkpoint {
namespace {

using Kind = TensorDifference::Kind;

std::string described(const ElementType& type, const std::vector<std::int64_t>& shape) {
  return fmt::format("{} {}", type.name, shape_text(shape));
}

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

/// How far two runs of numbers lie apart, block by block.
class Distance {
 public:
  void add(std::span<const double> first, std::span<const double> second) {
    for (std::size_t i = 0; i < first.size(); ++i) add(first[i], second[i]);
  }
  void fill(TensorDifference& difference) const {
    difference.num_different = num_different_;
    difference.largest = largest_;
    if (num_different_ > 0) difference.relative = std::sqrt(square_sum_) / std::sqrt(second_square_sum_);
  }
  std::int64_t num_different() const { return num_different_; }

 private:
  void add(double first, double second) {
    second_square_sum_ += second * second;
    const bool is_same =
        first == second ? std::signbit(first) == std::signbit(second) : std::isnan(first) && std::isnan(second);
    if (is_same) return;
    ++num_different_;
    const double difference = std::fabs(first - second);
    square_sum_ += difference * difference;
    if (!(difference <= largest_)) largest_ = difference;  // and a NaN stays
  }

  std::int64_t num_different_ = 0;
  double largest_ = 0.0;
  double square_sum_ = 0.0;
  double second_square_sum_ = 0.0;
};

std::span<std::byte> bytes_of(std::vector<double>& values) {
  return std::as_writable_bytes(std::span(values));
}

/// Adds what comes of the values to the comparison.
void settle(TensorDifference difference, Comparison& comparison) {
  const bool is_same = difference.kind == Kind::kOtherValues && difference.num_different == 0;
  if (is_same) {
    ++comparison.num_equal;
  } else {
    comparison.tensors.push_back(std::move(difference));
  }
}

// ---- weights ----

void compare_values(const Weights& first, std::size_t of_first, const Weights& second, std::size_t of_second,
                    TensorDifference& difference) {
  Distance distance;
  std::vector<double> left;
  std::vector<double> right;
  for (std::int64_t begin = 0; begin < difference.num_elements; begin += kChunkElements) {
    const std::int64_t count = std::min(kChunkElements, difference.num_elements - begin);
    left.resize(static_cast<std::size_t>(count));
    right.resize(left.size());
    first.read(of_first, begin, DType::kFloat64, bytes_of(left));
    second.read(of_second, begin, DType::kFloat64, bytes_of(right));
    distance.add(left, right);
  }
  distance.fill(difference);
}

void compare_weights(const Weights& first, const Weights& second, Comparison& comparison, const Progress& progress) {
  const auto text = [](const Weights& weights, std::size_t i) {
    return described(element_type(weights.dtype(i)), weights.parameters()[i].shape);
  };
  for (std::size_t i = 0; i < first.parameters().size(); ++i) {
    const model::ParameterDescriptor& parameter = first.parameters()[i];
    progress(static_cast<std::int64_t>(i), std::ssize(first.parameters()));
    TensorDifference difference{.name = parameter.name, .part = kWeight, .first = text(first, i), .second = {}};
    const auto found = second.find(parameter.name);
    if (!found) {
      difference.kind = Kind::kOnlyInFirst;
      settle(std::move(difference), comparison);
      continue;
    }
    difference.second = text(second, *found);
    difference.num_elements = parameter.num_elements();
    if (second.parameters()[*found].shape != parameter.shape) {
      difference.kind = Kind::kOtherShape;
    } else {
      if (first.dtype(i) != second.dtype(*found)) difference.kind = Kind::kOtherType;
      compare_values(first, i, second, *found, difference);
    }
    settle(std::move(difference), comparison);
  }
  for (std::size_t i = 0; i < second.parameters().size(); ++i) {
    if (first.find(second.parameters()[i].name)) continue;
    settle({.kind = Kind::kOnlyInSecond,
            .name = second.parameters()[i].name,
            .part = kWeight,
            .first = {},
            .second = text(second, i)},
           comparison);
  }
}

// ---- what training adds ----

std::vector<std::byte> whole(const CheckpointReader& reader, const GlobalTensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor_bytes(*tensor.type, tensor.shape)));
  reader.read(tensor, bytes);
  return bytes;
}

/// Two tensors of one type without numbers of ours, such as fp8 beside its scales: bytes that differ.
void compare_bytes(std::span<const std::byte> first, std::span<const std::byte> second, TensorDifference& difference) {
  for (std::size_t i = 0; i < first.size(); ++i) difference.num_different += first[i] != second[i] ? 1 : 0;
  if (difference.num_different > 0) difference.largest = std::numeric_limits<double>::quiet_NaN();
}

void compare_numbers(DType first_type, std::span<const std::byte> first, DType second_type,
                     std::span<const std::byte> second, TensorDifference& difference) {
  Distance distance;
  std::vector<double> left;
  std::vector<double> right;
  for (std::int64_t begin = 0; begin < difference.num_elements; begin += kChunkElements) {
    const std::int64_t count = std::min(kChunkElements, difference.num_elements - begin);
    const auto part = [&](std::span<const std::byte> bytes, DType type) {
      return bytes.subspan(static_cast<std::size_t>(begin * size_bytes(type)),
                           static_cast<std::size_t>(count * size_bytes(type)));
    };
    left.resize(static_cast<std::size_t>(count));
    right.resize(left.size());
    convert(first_type, part(first, first_type), DType::kFloat64, bytes_of(left));
    convert(second_type, part(second, second_type), DType::kFloat64, bytes_of(right));
    distance.add(left, right);
  }
  distance.fill(difference);
}

bool holds_numbers(const GlobalTensor& tensor) {
  return tensor.type->dtype && is_floating(*tensor.type->dtype);
}

void compare_state(const CheckpointReader& first, const CheckpointReader& second, Comparison& comparison,
                   const Progress& progress) {
  const auto& tensors = first.index().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const GlobalTensor& mine = tensors[i];
    progress(static_cast<std::int64_t>(i), std::ssize(tensors));
    if (mine.kind == kWeight) continue;
    const GlobalTensor* other = second.index().find(mine.name, mine.kind);
    TensorDifference difference{
        .name = mine.name, .part = mine.kind, .first = described(*mine.type, mine.shape), .second = {}};
    if (other == nullptr) {
      difference.kind = Kind::kOnlyInFirst;
      settle(std::move(difference), comparison);
      continue;
    }
    difference.second = described(*other->type, other->shape);
    difference.num_elements = elements_of(mine.shape);
    if (mine.shape != other->shape) {
      difference.kind = Kind::kOtherShape;
    } else if (mine.type == other->type && !holds_numbers(mine)) {
      compare_bytes(whole(first, mine), whole(second, *other), difference);
    } else {
      if (mine.type != other->type) difference.kind = Kind::kOtherType;
      if (holds_numbers(mine) && holds_numbers(*other)) {
        compare_numbers(*mine.type->dtype, whole(first, mine), *other->type->dtype, whole(second, *other), difference);
      }
    }
    settle(std::move(difference), comparison);
  }
  for (const GlobalTensor& tensor : second.index().tensors) {
    if (tensor.kind == kWeight || first.index().find(tensor.name, tensor.kind) != nullptr) continue;
    settle({.kind = Kind::kOnlyInSecond,
            .name = tensor.name,
            .part = tensor.kind,
            .first = {},
            .second = described(*tensor.type, tensor.shape)},
           comparison);
  }
}

/// Numbers by their path in the index, "schedule.lr" and so on.
std::map<std::string, std::string> fields_of(const CheckpointIndex& index) {
  std::map<std::string, std::string> fields;
  fields["iteration"] = std::to_string(index.iteration);
  fields["consumed_samples"] = std::to_string(index.consumed_samples);
  if (!index.training) return fields;
  const nlohmann::json flat = nlohmann::json(to_json(*index.training)).flatten();
  for (const auto& [path, value] : flat.items()) {
    // Seconds of an open interval are the clock's, not the run's.
    if (path == "/log_interval/seconds") continue;
    std::string name = path.substr(1);
    std::ranges::replace(name, '/', '.');
    fields[name] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return fields;
}

void compare_fields(const CheckpointIndex& first, const CheckpointIndex& second, Comparison& comparison) {
  const auto left = fields_of(first);
  auto right = fields_of(second);
  for (const auto& [name, value] : left) {
    const auto found = right.find(name);
    const std::string other = found == right.end() ? "" : found->second;
    if (value != other) comparison.fields.push_back({name, value, other});
    if (found != right.end()) right.erase(found);
  }
  for (const auto& [name, value] : right) comparison.fields.push_back({name, "", value});
}

}  // namespace

Comparison compare(const StoredModel& first, const StoredModel& second, const Progress& progress) {
  Comparison comparison;
  compare_weights(*first.weights, *second.weights, comparison, progress);
  if (!is_checkpoint(first.folder) || !is_checkpoint(second.folder)) return comparison;
  const CheckpointReader left(first.folder);
  const CheckpointReader right(second.folder);
  compare_state(left, right, comparison, progress);
  compare_fields(left.index(), right.index(), comparison);
  return comparison;
}

}  // namespace primus::checkpoint
