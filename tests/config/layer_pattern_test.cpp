#include "config/layer_pattern.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace primus::config {
namespace {

using testing::ElementsAre;

TEST(ListExpression, Grammar) {
  EXPECT_THAT(parse_list_expression("([0]*1+[1]*3)").items, ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(parse_list_expression("[0]*2 + [1]").items, ElementsAre(0, 0, 1));
  EXPECT_THAT(parse_list_expression("([0,1]*2+[1])*2").items, ElementsAre(0, 1, 0, 1, 1, 0, 1, 0, 1, 1));
  EXPECT_THAT(parse_list_expression("[]+[1]*0+[-1]").items, ElementsAre(-1));
}

TEST(ListExpression, ShortTextReadsBack) {
  for (const std::vector<std::int64_t>& items :
       {std::vector<std::int64_t>{0, 1, 1, 1}, {1}, {1, 1, 1, 0, 1, 1, 1, 0}, {0, 0, 0}}) {
    EXPECT_EQ(parse_list_expression(pattern_text(items)).items, items) << pattern_text(items);
  }
  EXPECT_EQ(pattern_text({0, 1, 1, 0}), "([0]*1+[1]*2+[0]*1)");
}

struct Malformed {
  const char* text;
  const char* error;
};

class MalformedList : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedList, SaysWhere) {
  const ListExpression list = parse_list_expression(GetParam().text);
  EXPECT_EQ(list.error, GetParam().error);
  EXPECT_TRUE(list.items.empty());
}

INSTANTIATE_TEST_SUITE_P(All, MalformedList,
                         testing::Values(Malformed{"", "expected '[' or '(' at character 1"},
                                         Malformed{"[0]*", "expected an integer at character 5"},
                                         Malformed{"([0]*1", "expected ')' at character 7"},
                                         Malformed{"[0 1]", "expected ',' or ']' at character 4"},
                                         Malformed{"[0]*1+[1]x", "expected '+', '*' or the end at character 10"},
                                         Malformed{"[0]*999999999", "the list is repeated too often at character 14"},
                                         Malformed{"[0]*-1", "the list is repeated too often at character 7"},
                                         Malformed{"__import__('os')", "expected '[' or '(' at character 1"},
                                         Malformed{"[99999999999999999999]", "expected an integer at character 2"}));

TEST(ListExpression, DeepNestingEnds) {
  EXPECT_NE(parse_list_expression(std::string(100'000, '(')).error, "");
}

TEST(ExpandLayerPattern, EveryNthLayerFromTheFirst) {
  EXPECT_THAT(expand_layer_pattern({std::int64_t{1}}, 3), ElementsAre(1, 1, 1));
  EXPECT_THAT(expand_layer_pattern({std::int64_t{2}}, 5), ElementsAre(1, 0, 1, 0, 1));
  EXPECT_THAT(expand_layer_pattern({Value::List{{std::int64_t{0}}, {std::int64_t{1}}}}, 2), ElementsAre(0, 1));
}

TEST(ExpandLayerPattern, RefusesWhatDoesNotFit) {
  EXPECT_THROW(expand_layer_pattern({std::string("[0]*2")}, 3), UserError);
  EXPECT_THROW(expand_layer_pattern({std::string("[2]*3")}, 3), UserError);
  EXPECT_THROW(expand_layer_pattern({std::int64_t{0}}, 3), UserError);
  EXPECT_THROW(expand_layer_pattern({}, 3), UserError);
}

}  // namespace
}  // namespace primus::config
