#include "view/loss_curve.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "view/axis.hpp"
#include "view/svg.hpp"

namespace primus::view {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Point {
  double x, y;
};

/// The points of every polyline and circle, and a check that the text is balanced XML without strange numbers.
std::vector<Point> points_of(const std::string& svg) {
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf,")));
  EXPECT_EQ(svg.rfind("<svg", 0), 0U);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  std::vector<Point> points;
  for (std::size_t at = svg.find("points=\""); at != std::string::npos; at = svg.find("points=\"", at + 1)) {
    std::istringstream list(svg.substr(at + 8, svg.find('"', at + 8) - at - 8));
    Point point{};
    char comma = 0;
    while (list >> point.x >> comma >> point.y) points.push_back(point);
  }
  for (std::size_t at = svg.find("cx=\""); at != std::string::npos; at = svg.find("cx=\"", at + 1)) {
    points.push_back({std::stod(svg.substr(at + 4)), std::stod(svg.substr(svg.find("cy=\"", at) + 4))});
  }
  for (const Point& point : points) {
    EXPECT_GE(point.x, 70.0);
    EXPECT_LE(point.x, 940.0);
    EXPECT_GE(point.y, 50.0);
    EXPECT_LE(point.y, 490.0);
  }
  return points;
}

std::string draw(std::vector<CurvePoint> points, std::vector<ReferenceLine> references = {}) {
  const std::vector<Curve> curves = {{"training", std::move(points)}};
  return loss_curve_svg(curves, references, {"a title"});
}

TEST(LossCurve, OnePointIsADot) {
  const std::string svg = draw({{100.0, 2.5}});
  EXPECT_EQ(points_of(svg).size(), 1U);
  EXPECT_THAT(svg, HasSubstr("<circle"));
  EXPECT_THAT(svg, Not(HasSubstr("<polyline")));
}

TEST(LossCurve, NothingIsSaidToBeNothing) {
  EXPECT_THAT(loss_curve_svg({}, {}, {"x"}), HasSubstr("no values to draw"));
  const std::string svg = draw({{1.0, std::nan("")}, {2.0, std::numeric_limits<double>::infinity()}});
  EXPECT_THAT(svg, HasSubstr("no values to draw"));
  EXPECT_THAT(svg, HasSubstr("no values</tspan>"));
}

TEST(LossCurve, LeavesOutWhatIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::string svg = draw({{1, 2}, {2, std::nan("")}, {3, infinity}, {4, -infinity}, {5, 1e305}, {6, 3}},
                               {{"gone", std::nan("")}, {"kept", 2.5}});
  EXPECT_EQ(points_of(svg).size(), 4U);  // two in the line, the same two as dots
  EXPECT_THAT(svg, HasSubstr("kept"));
  EXPECT_THAT(svg, Not(HasSubstr("gone")));
}

TEST(LossCurve, DrawsEqualValues) {
  for (const double value : {0.0, 1e-7, -3.0, 5.95, 1e12}) {
    std::vector<CurvePoint> points;
    for (int i = 0; i < 50; ++i) points.push_back({static_cast<double>(i), value});
    EXPECT_EQ(points_of(draw(std::move(points))).size(), 50U) << value;
  }
}

TEST(LossCurve, AMillionPointsKeepTheirExtremesInFewBytes) {
  constexpr int kNumPoints = 1000000;
  std::vector<CurvePoint> points;
  for (int i = 0; i < kNumPoints; ++i) points.push_back({static_cast<double>(i), 2.0 + 0.1 * std::sin(i * 0.7)});
  points[123456].value = 9.0;
  points[654321].value = 0.5;
  const std::string svg = draw(std::move(points));
  EXPECT_LT(svg.size(), 100000U);
  double highest = 1e9, lowest = 0.0;
  for (const Point& point : points_of(svg)) {
    highest = std::min(highest, point.y);
    lowest = std::max(lowest, point.y);
  }
  EXPECT_GT(lowest - highest, 350.0);  // both spikes are there
}

TEST(LossCurve, EscapesNames) {
  const std::vector<Curve> curves = {{"a<b & \"c\"", {{1, 1}, {2, 2}}}};
  const std::vector<ReferenceLine> references = {{"x > y", 1.5}};
  const std::string svg = loss_curve_svg(curves, references, {"<t>"});
  EXPECT_THAT(svg, HasSubstr("a&lt;b &amp; &quot;c&quot;"));
  EXPECT_THAT(svg, HasSubstr("x &gt; y"));
  EXPECT_THAT(svg, HasSubstr("&lt;t&gt;"));
  EXPECT_EQ(escaped(std::string("a\0\x01z", 4)), "a  z");
}

TEST(LossCurve, StandsAlone) {
  const std::string svg = draw({{1, 2}, {2, 1}});
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(svg, HasSubstr("role=\"img\""));
  for (const char* outside : {"href", "url(", "@import", "<script", "<image"}) {
    EXPECT_THAT(svg, Not(HasSubstr(outside)));
  }
}

TEST(LossCurve, NeighbouringReferenceLabelsKeepApart) {
  const std::string svg = draw({{1, 6}, {2, 1}}, {{"p", 1.00}, {"q", 1.01}, {"r", 1.02}, {"s", 6.0}});
  std::vector<double> baselines;
  for (std::size_t at = svg.find("\"reference-label\""); at != std::string::npos;
       at = svg.find("\"reference-label\"", at + 1)) {
    baselines.push_back(std::stod(svg.substr(svg.find("y=\"", at) + 3)));
  }
  ASSERT_EQ(baselines.size(), 4U);
  for (std::size_t i = 1; i < baselines.size(); ++i) EXPECT_GE(baselines[i] - baselines[i - 1], 15.9);
  EXPECT_LT(baselines.back(), 480.0);
}

TEST(Axis, TicksAreRoundAndInside) {
  for (const double low : {-1e6, -3.7, 0.0, 1e-9, 2.345, 1e12}) {
    for (const double width : {1e-6, 0.37, 5.0, 1234.0, 1e9}) {
      const Axis axis(low, low + width, 0.0, 100.0, 8, TickKind::kReal);
      ASSERT_GE(axis.ticks().size(), 2U) << low << " " << width;
      ASSERT_LE(axis.ticks().size(), 10U) << low << " " << width;
      std::string previous;
      for (const double tick : axis.ticks()) {
        EXPECT_GT(axis.pixel(tick), -0.01);
        EXPECT_LT(axis.pixel(tick), 100.01);
        EXPECT_NE(axis.label(tick), previous);
        previous = axis.label(tick);
      }
    }
  }
}

TEST(Axis, Labels) {
  const Axis loss(1.8, 6.1, 0, 1, 8, TickKind::kReal);
  EXPECT_THAT(loss.ticks(), ElementsAre(2, 3, 4, 5, 6));
  EXPECT_EQ(loss.label(2.0), "2");
  const Axis fine(2.0, 2.1, 0, 1, 8, TickKind::kReal);
  EXPECT_EQ(fine.label(2.02), "2.02");
  const Axis steps(1, 3, 0, 1, 10, TickKind::kWhole);
  EXPECT_THAT(steps.ticks(), ElementsAre(1, 2, 3));
  const Axis many(0, 1e6, 0, 1, 5, TickKind::kWhole);
  EXPECT_EQ(many.label(200000), "200,000");
}

}  // namespace
}  // namespace primus::view
