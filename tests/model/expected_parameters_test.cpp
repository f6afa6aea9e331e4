// Parameter counts and FLOPs of the preset family against a table that was written apart from the presets.
#include <gtest/gtest.h>

#include <cstdlib>

#include "config/expected_table.hpp"
#include "model/flops.hpp"
#include "model/parameters.hpp"
#include "model/preset_spec.hpp"

namespace primus::model {
namespace {

using test::TableRow;

std::int64_t number(const std::string& cell) {
  return std::atoll(cell.c_str());
}

bool mentions(const TableRow& row, const char* column, const char* words) {
  return row.at(column).find(words) != std::string::npos;
}

/// The preset as the row's note has it.
ModelSpec spec_of(const TableRow& row) {
  std::vector<std::string> overrides = {"--vocab_size", row.at("vocab")};
  if (mentions(row, "note", "MLA off")) overrides.insert(overrides.end(), {"--multi_latent_attention", "False"});
  if (mentions(row, "note", "no expert bias")) {
    overrides.insert(overrides.end(), {"--moe_router_enable_expert_bias", "False"});
  }
  return test::preset_spec(row.at("model"), overrides);
}

/// What Primus' memory projection counts more than a model has: three norms a layer of weight and bias each instead of
/// two weights, a bias of the final norm, and less: no norms on each head's queries and keys.
std::int64_t projection_surplus(const TableRow& row, const ModelSpec& spec) {
  if (!mentions(row, "source", "memory projection")) return 0;
  const auto* gqa = std::get_if<GqaSpec>(&spec.attention);
  const std::int64_t qk_norms = gqa && gqa->qk_norms == Part::kPresent ? 2 * gqa->head_dim : 0;
  return spec.num_layers() * (4 * spec.hidden_size - qk_norms) + spec.hidden_size;
}

std::int64_t total_of(const TableRow& row, const ModelSpec& spec) {
  const std::int64_t depths = mentions(row, "note", "with one MTP depth") ? count_mtp_parameters(spec) : 0;
  return count_parameters(spec).total + depths + projection_surplus(row, spec);
}

std::int64_t active_of(const TableRow& row, const ModelSpec& spec) {
  if (mentions(row, "source", "closed form")) return closed_form_active_parameters(spec);
  return count_parameters(spec).active + projection_surplus(row, spec);
}

std::int64_t flops_of(const TableRow& row, const ModelSpec& spec) {
  const std::int64_t depths = mentions(row, "note", "with one MTP depth") ? mtp_training_flops_per_token(spec) : 0;
  return flops_per_token(spec).training() + depths;
}

TEST(ExpectedParameters, OfEveryRow) {
  const std::vector<TableRow> rows = test::read_table("expected_parameters.tsv");
  EXPECT_EQ(rows.size(), 45U);
  int num_compared = 0;
  for (const TableRow& row : rows) {
    const ModelSpec spec = spec_of(row);
    const std::int64_t tolerance = number(row.at("tolerance"));
    const auto compare = [&](const char* column, std::int64_t found) {
      if (row.at(column).empty()) return;
      EXPECT_LE(std::abs(found - number(row.at(column))), tolerance)
          << row.at("model") << ' ' << column << ": found " << found << ", expected " << row.at(column) << " ("
          << row.at("source") << "; " << row.at("note") << ')';
      ++num_compared;
    };
    compare("total", total_of(row, spec));
    compare("active", active_of(row, spec));
    compare("active_without_embedding", count_parameters(spec).active_without_embedding);
    compare("flops_per_token", flops_of(row, spec));
  }
  EXPECT_EQ(num_compared, 70);
}

}  // namespace
}  // namespace primus::model
