#pragma once
// Several data sets mixed by weight, each sample's place known beforehand.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/sample_set.hpp"

namespace primus::data {

/// Paths of a `data_path` list, and their weights where it gives them.
struct BlendSpec {
  std::vector<std::string> prefixes;
  std::optional<std::vector<double>> weights;  // as written, not normalised
};

/// Read a `data_path` list: one prefix, prefixes, or weight and prefix in turn. A single text with spaces counts as a
/// list. Throws ConfigError naming `key`.
BlendSpec parse_blend(const std::vector<std::string>& entries, const std::string& key);

/// Weights divided by their sum.
std::vector<double> normalized(std::vector<double> weights);

/// How many samples of a data set a blend of `num_samples` plans to use.
std::int64_t blend_target(std::int64_t num_samples, double weight);

/// How many samples it has built for that: the target and half a percent, since the mix is not exact.
std::int64_t blend_surplus(std::int64_t target);

/// Which sample of which data set a place of the blend holds.
struct BlendEntry {
  std::int16_t dataset = 0;
  std::int64_t sample = 0;
  bool operator==(const BlendEntry&) const = default;
};

/// At each place, the data set that lags furthest behind its weight. One that has no sample left (`limits`), or no
/// weight, is passed over, so that no place ever points outside its data set; with limits that sum to `num_samples` the
/// blend uses every sample once.
std::vector<BlendEntry> build_blend(const std::vector<double>& weights, const std::vector<std::int64_t>& limits,
                                    std::int64_t num_samples);

/// The blend of several sample sets.
class BlendedDataset final : public SampleSet {
 public:
  /// With weights: at least `num_samples` samples, targets rounded up. Without: mixed in proportion to their sizes,
  /// no sample twice, at most `num_samples`.
  BlendedDataset(std::vector<std::unique_ptr<SampleSet>> datasets, std::optional<std::vector<double>> weights,
                 std::optional<std::int64_t> num_samples);

  const std::string& name() const override { return name_; }
  std::int64_t num_samples() const override { return static_cast<std::int64_t>(entries_.size()); }
  void read(std::int64_t sample, std::span<std::int64_t> out) const override;

  const std::vector<BlendEntry>& entries() const { return entries_; }

 private:
  std::string name_;
  std::vector<std::unique_ptr<SampleSet>> datasets_;
  std::vector<BlendEntry> entries_;
};

}  // namespace primus::data
