#pragma once
// Sentences and figures about charts, the same in every form of a picture.
#include <cstddef>
#include <string>
#include <string_view>

#include "view/pipeline_chart.hpp"

namespace primus::view {

/// A time or an amount for people: four significant digits, thousands apart.
std::string figure(double value);

/// What a rank holds: two decimals of a size in bytes, so that a column's points stand below each other.
std::string memory_figure(double amount, const std::string& unit);

/// "8 ranks, 2 chunks each, 32 micro-batches; step 319.5 forwards; mean bubble 9.86 %; ..."
std::string chart_facts(const PipelineChart& chart, const PipelinePicture& picture);

/// "rank 3: forward 32, backward 64; bubble 17.95 %; peak 5 activations"
std::string rank_facts(const PipelineChart& chart, std::size_t rank, const PipelinePicture& picture);

}  // namespace primus::view
