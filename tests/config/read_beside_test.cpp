// Keys that are read only beside a switch: which those are, and what is said of them.
#include "config/read_beside.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "config/resolve_fixture.hpp"

namespace primus::config {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

std::string no_effect(const Resolution& resolution) {
  std::string text;
  for (const Note& note : resolution.no_effect) text += note.key + ": " + note.text + "\n";
  return text;
}

std::string refused(const std::vector<std::string>& words) {
  const ResolveFixture fixture;
  return fixture.problems(words, Purpose::kTrain, 1);
}

TEST(ReadBeside, EveryDetailHasASwitchAndEveryOtherPlannedKeyNone) {
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      const bool has_switch = !switches_of(key).empty();
      if (key.state == KeyState::kPlanned) {
        EXPECT_EQ(has_switch, key.reading == Reading::kBesideASwitch) << key.name;
      }
      EXPECT_FALSE(has_switch && key.state == KeyState::kNoEffect) << key.name;
    }
  }
}

TEST(ReadBeside, SwitchesAreKeysThatLeadToOneThatIsReadByItself) {
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      std::vector<const Key*> path = {&key};
      std::set<const Key*> seen;
      while (!path.empty()) {
        const Key* next = path.back();
        path.pop_back();
        ASSERT_TRUE(seen.insert(next).second || next != &key) << key.name << " leads to itself";
        if (seen.size() > 100) FAIL() << key.name;
        for (const Switch& conditions : switches_of(*next)) {
          for (const Condition& one : conditions) {
            const Key* row = find_key(one.key);
            ASSERT_NE(row, nullptr) << one.key;
            EXPECT_NE(row->state, KeyState::kNoEffect) << one.key;
            if (!seen.contains(row)) path.push_back(row);
          }
        }
      }
    }
  }
}

TEST(ReadBeside, ADetailIsWithoutEffectWhileItsSwitchIsOff) {
  const ResolveFixture fixture;
  const std::vector<std::vector<std::string>> cases = {
      {"--fp8_recipe", "tensorwise"}, {"--replication_jump", "2"},       {"--zero_bubble_v_schedule_mem_setup", "min"},
      {"--tensorboard_dir", "here"},  {"--first_last_layers_bf16=true"}, {"--odc_phase", "1"},
      {"--muon_momentum", "0.5"},     {"--num_layers_at_end_in_bf16=3"}};
  const std::vector<std::string> switches = {"fp8",
                                             "replication",
                                             "patch_zero_bubble or zero_bubble_v_schedule or enable_1f1b_v",
                                             "disable_tensorboard false",
                                             "fp8 or fp4",
                                             "enable_odc",
                                             "optimizer muon|dist_muon|adaptive_muon",
                                             "first_last_layers_bf16"};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Resolution resolution = fixture.resolve(cases[i], Purpose::kTrain, 1);
    EXPECT_THAT(no_effect(resolution), HasSubstr("read only beside " + switches[i] + "\n")) << cases[i].front();
    EXPECT_THAT(resolution.planned, IsEmpty());
  }
}

TEST(ReadBeside, ADetailOfASwitchThatIsOnStopsARealTrain) {
  const ResolveFixture fixture;
  const std::string text =
      refused({"--fp8", "hybrid", "--fp8_recipe", "tensorwise", "--replication", "--replication_jump=3"});
  for (const char* key :
       {"--fp8: planned", "--fp8_recipe: planned", "--replication: planned", "--replication_jump: planned"})
    EXPECT_THAT(text, HasSubstr(key));
  // A switch that is itself a detail is off while its own switch is.
  const Resolution chain = fixture.resolve({"--first_last_layers_bf16", "--num_layers_at_end_in_bf16=0"});
  EXPECT_THAT(no_effect(chain), HasSubstr("num_layers_at_end_in_bf16: read only beside first_last_layers_bf16\n"));
  EXPECT_EQ(
      fixture.resolve({"--fp8=hybrid", "--first_last_layers_bf16", "--num_layers_at_end_in_bf16=0"}).planned.size(),
      3U);
}

TEST(ReadBeside, KeysThatActByThemselvesStopARealTrain) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--zero_bubble_v_schedule"}, {"--enable_1f1b_v"}, {"--hybrid_layer_pattern=M"}}) {
    EXPECT_THAT(refused(words), HasSubstr("planned, not built yet")) << words.front();
  }
}

// Every planned key, away from its default and with its switches off or absent: it is refused, or it is said to be
// without effect. None passes in silence.
TEST(ReadBeside, NoPlannedKeyIsPassedOver) {
  const ResolveFixture fixture;
  int num_keys = 0;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      if (key.state != KeyState::kPlanned || key.type != KeyType::kBool) continue;
      const bool is_true = default_value(key) == Value{true};
      const std::string word = "--" + std::string(key.name) + (is_true ? "=false" : "=true");
      ++num_keys;
      try {
        const Resolution resolution = fixture.resolve({word}, Purpose::kTrain, 1);
        EXPECT_THAT(no_effect(resolution) + ResolveFixture::notes(resolution), HasSubstr(std::string(key.name)));
      } catch (const ConfigError&) {
        continue;
      }
    }
  }
  EXPECT_GT(num_keys, 100);
}

TEST(ReadBeside, DetailsOfASwitch) {
  EXPECT_THAT(details_of(*find_key("profile")), testing::Contains("profile_step_end"));
  EXPECT_THAT(details_of(*find_key("lr")), IsEmpty());
}

TEST(States, APlanTellsWhatATrainRefusesFromWhatYields) {
  const ResolveFixture fixture;
  const Resolution inherited = fixture.resolve({}, Purpose::kPlan, 4);
  EXPECT_THAT(inherited.planned, IsEmpty());
  ASSERT_EQ(inherited.yielding.size(), 2U);  // expert_model_parallel_size 4 and moe_shared_expert_overlap
  EXPECT_EQ(inherited.yielding.front().key, "expert_model_parallel_size");
  const Resolution written = fixture.resolve({"--moe_shared_expert_overlap", "--expert_model_parallel_size=4"});
  EXPECT_EQ(written.planned.size(), 2U);
}

}  // namespace
}  // namespace primus::config
