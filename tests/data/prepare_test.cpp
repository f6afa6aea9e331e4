#include "data/prepare.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "data/indexed_dataset.hpp"
#include "data/ngram.hpp"
#include "data/temporary_folder.hpp"
#include "data/tokenizer.hpp"

namespace primus::data {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> documents_of(const std::string& prefix) {
  const IndexedDataset dataset(prefix);
  const ByteTokenizer tokenizer;
  std::vector<std::string> documents;
  for (std::int64_t i = 0; i < dataset.num_documents(); ++i) {
    EXPECT_EQ(dataset.document_begin(i), i);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(dataset.length(i)));
    dataset.read(i, 0, ids);
    EXPECT_EQ(ids.back(), tokenizer.eod());
    documents.push_back(tokenizer.decode(ids));
  }
  return documents;
}

/// A text of distinct sentences.
std::string essay(const std::string& about, int num_sentences) {
  std::string text;
  for (int i = 0; i < num_sentences; ++i) {
    text +=
        fmt::format("Of {0} number {0}{1} we say {0}{2} and {0}{3}.\n", about, i, i * 7919 % 1009, i * 104729 % 997);
  }
  return text;
}

class Prepare : public testing::Test {
 protected:
  Prepare() {
    fs::create_directories(in_ / "sub");
    write_file(in_ / "b.txt", essay("boats", 40));
    write_file(in_ / "a.txt", essay("apples", 40));
    write_file(in_ / "sub/c.txt", essay("clouds", 40));
    options_.inputs = {in_.path()};
    options_.output_prefix = out_ / "train";
  }

  TemporaryFolder in_, out_;
  PrepareOptions options_;
};

TEST_F(Prepare, WritesADocumentAFileInNameOrder) {
  std::vector<std::int64_t> steps;
  std::int64_t total = 0;
  const PrepareSummary summary = prepare(options_, [&](std::int64_t done, std::int64_t all) {
    steps.push_back(done);
    total = all;
  });
  const std::vector<std::string> expected = {essay("apples", 40), essay("boats", 40), essay("clouds", 40)};
  EXPECT_EQ(documents_of(out_ / "train_text_document"), expected);
  const auto num_bytes = static_cast<std::int64_t>(expected[0].size() + expected[1].size() + expected[2].size());
  EXPECT_EQ(summary.num_documents, 3);
  EXPECT_EQ(summary.num_bytes, num_bytes);
  EXPECT_EQ(summary.num_tokens, num_bytes + 3);
  EXPECT_EQ(summary.num_skipped_files, 0);
  EXPECT_EQ(summary.num_held_out_tokens, 0);
  EXPECT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps.back(), total);
  EXPECT_EQ(total, num_bytes);
  EXPECT_THAT(summary.outputs, ElementsAre(out_ / "train_text_document.bin", out_ / "train_text_document.idx"));
  EXPECT_THAT(out_.names(), ElementsAre("train_text_document.bin", "train_text_document.idx"));
  EXPECT_EQ(IndexedDataset(out_ / "train_text_document").token_type(), TokenType::kUint16);
}

TEST_F(Prepare, SkipsLinksCopiesAndNearCopies) {
  fs::create_symlink(in_ / "a.txt", in_ / "link.txt");
  fs::create_directory_symlink(in_ / "sub", in_ / "loop");
  write_file(in_ / "copy.txt", essay("boats", 40));
  write_file(in_ / "near.txt", essay("apples", 40) + "One more line of other words.\n");
  write_file(in_ / "empty.txt", "");
  const PrepareSummary summary = prepare(options_, {});
  EXPECT_EQ(summary.num_documents, 3);
  EXPECT_EQ(summary.num_skipped_files, 4);
}

TEST_F(Prepare, HoldsOutTheEndOfAFile) {
  options_.held_out = {in_ / "b.txt"};
  options_.held_out_fraction = 0.25;
  options_.held_out_prefix = out_ / "valid";
  const PrepareSummary summary = prepare(options_, {});
  const std::vector<std::string> train = documents_of(out_ / "train_text_document");
  const std::vector<std::string> valid = documents_of(out_ / "valid_text_document");
  ASSERT_EQ(train.size(), 3U);
  ASSERT_EQ(valid.size(), 1U);
  EXPECT_EQ(train[1] + valid[0], essay("boats", 40));
  EXPECT_EQ(train[1].back(), '\n');
  EXPECT_NEAR(static_cast<double>(valid[0].size()) / static_cast<double>(essay("boats", 40).size()), 0.25, 0.03);
  EXPECT_EQ(summary.num_held_out_tokens, static_cast<std::int64_t>(valid[0].size()) + 1);
  EXPECT_EQ(summary.outputs.size(), 4U);
}

TEST_F(Prepare, KeepsRelativesOfHeldOutTextFromTraining) {
  const std::string held_out = essay("boats", 40);
  write_file(in_ / "a_carrier.txt", essay("ducks", 200) + held_out.substr(held_out.size() - 300) + essay("eels", 200));
  write_file(in_ / "z_other_version.txt", essay("fish", 60) + held_out.substr(0, held_out.size() / 3));
  options_.held_out = {in_ / "sub/../b.txt"};  // another spelling of the same file
  options_.held_out_fraction = 0.3;
  options_.held_out_prefix = out_ / "valid";
  const PrepareSummary summary = prepare(options_, {});
  EXPECT_EQ(summary.num_documents, 3);
  EXPECT_EQ(summary.num_skipped_files, 0);
  EXPECT_THAT(summary.repeats_held_out, ElementsAre(in_ / "a_carrier.txt", in_ / "z_other_version.txt"));
}

TEST_F(Prepare, HeldOutFilesOutsideTheInputAreNotTrainedOn) {
  write_file(out_ / "other.txt", essay("owls", 40));
  options_.held_out = {out_ / "other.txt"};
  options_.held_out_fraction = 1.0;
  options_.held_out_prefix = out_ / "valid";
  EXPECT_EQ(prepare(options_, {}).num_documents, 3);
  EXPECT_THAT(documents_of(out_ / "valid_text_document"), ElementsAre(essay("owls", 40)));
}

TEST_F(Prepare, NeverCutsACharacter) {
  std::string text;
  for (int i = 0; i < 101; ++i) text += "ä";
  write_file(in_ / "b.txt", text);
  options_.held_out = {in_ / "b.txt"};
  options_.held_out_prefix = out_ / "valid";
  for (const double fraction : {0.1, 0.25, 0.26, 0.5}) {
    options_.held_out_fraction = fraction;
    prepare(options_, {});
    EXPECT_EQ(static_cast<unsigned char>(documents_of(out_ / "valid_text_document")[0][0]), 0xC3);
  }
}

TEST_F(Prepare, WhatIsNoTextIsLeftOutOfAFolderAndRefusedByName) {
  write_file(in_ / "picture.png", std::string("\x89PNG\0\0\1", 7));
  const PrepareSummary summary = prepare(options_, {});
  EXPECT_EQ(summary.num_documents, 3);
  EXPECT_THAT(summary.not_text, ElementsAre(in_ / "picture.png"));
  options_.inputs = {in_ / "picture.png"};
  EXPECT_THAT(user_error([this] { prepare(options_, {}); }), HasSubstr("picture.png: is no text: byte 4 is NUL"));
}

TEST_F(Prepare, DoesNotTakeItsOwnOutputsAsText) {
  options_.output_prefix = in_ / "train";
  options_.held_out = {in_ / "b.txt"};
  options_.held_out_fraction = 0.5;
  options_.held_out_prefix = in_ / "sub/valid";
  const std::int64_t num_tokens = prepare(options_, {}).num_tokens;
  const PrepareSummary again = prepare(options_, {});
  EXPECT_EQ(again.num_tokens, num_tokens);
  EXPECT_EQ(again.not_text.size(), 4U);
}

TEST_F(Prepare, PlanReadsAndWritesNothing) {
  options_.held_out_prefix = out_ / "valid";
  options_.held_out = {in_ / "b.txt"};
  options_.held_out_fraction = 0.5;
  const PreparePlan plan = plan_prepare(options_);
  EXPECT_THAT(plan.files, ElementsAre(in_ / "a.txt", in_ / "b.txt", in_ / "sub/c.txt"));
  EXPECT_EQ(plan.outputs.size(), 4U);
  EXPECT_THAT(out_.names(), IsEmpty());
  EXPECT_EQ(prepare(options_, {}).outputs, plan.outputs);
}

TEST_F(Prepare, WithoutEndOfDocument) {
  options_.append_eod = false;
  const PrepareSummary summary = prepare(options_, {});
  EXPECT_EQ(summary.num_tokens, summary.num_bytes);
}

TEST_F(Prepare, NamesWhatIsWrongAndLeavesNothing) {
  const auto message = [this] { return user_error([this] { prepare(options_, {}); }); };
  const PrepareOptions good = options_;
  options_.inputs = {in_ / "none"};
  EXPECT_THAT(message(), HasSubstr((in_ / "none") + ": does not exist"));
  options_.inputs = {};
  EXPECT_THAT(message(), HasSubstr("no input"));
  options_ = good;
  options_.tokenizer.type = "BiteTokenizer";
  EXPECT_THAT(message(), HasSubstr("did you mean 'ByteTokenizer'?"));
  options_ = good;
  options_.held_out = {in_ / "none"};
  EXPECT_THAT(message(), HasSubstr("held-out part"));
  options_.held_out_fraction = 0.5;
  EXPECT_THAT(message(), HasSubstr("no prefix"));
  options_.held_out_prefix = options_.output_prefix;
  EXPECT_THAT(message(), HasSubstr("both"));
  options_.held_out_prefix = out_ / "valid";
  EXPECT_THAT(message(), HasSubstr((in_ / "none") + ": is no file"));
  options_ = good;
  const TemporaryFolder empty;
  options_.inputs = {empty.path()};
  EXPECT_THAT(message(), HasSubstr("holds no text"));
  EXPECT_THAT(out_.names(), IsEmpty());
}

TEST_F(Prepare, AFailureAtTheEndTakesBackWhatWasPublished) {
  fs::create_directories(out_ / "valid_text_document.idx/occupied");
  options_.held_out = {in_ / "b.txt"};
  options_.held_out_fraction = 0.5;
  options_.held_out_prefix = out_ / "valid";
  EXPECT_THAT(user_error([this] { prepare(options_, {}); }), HasSubstr("valid_text_document.idx"));
  EXPECT_THAT(out_.names(), ElementsAre("valid_text_document.idx", "valid_text_document.idx/occupied"));
}

// The quickstart's text, where the machine has it.
TEST_F(Prepare, LicenceTextsOfTheMachine) {
  const std::string licences = "/usr/share/common-licenses";
  if (!fs::exists(licences + "/MPL-2.0")) GTEST_SKIP() << licences << " has no MPL-2.0";
  options_.inputs = {licences};
  options_.held_out = {licences + "/MPL-2.0"};
  options_.held_out_fraction = 0.3;
  options_.held_out_prefix = out_ / "valid";
  const PrepareSummary summary = prepare(options_, {});
  EXPECT_GE(summary.num_documents, 5);
  EXPECT_GT(summary.num_bytes, 100000);
  EXPECT_NEAR(static_cast<double>(summary.num_held_out_tokens), 5000.0, 250.0);
  for (const std::string& document : documents_of(out_ / "train_text_document")) {
    EXPECT_EQ(document.find("MOZILLA PUBLIC LICENSE"), std::string::npos);  // version 1.1 stays out
  }
  const NgramBaseline baseline = ngram_baseline(out_ / "train_text_document", out_ / "valid_text_document", 257);
  EXPECT_NEAR(baseline.unigram_nats, 3.4, 0.15);
  EXPECT_NEAR(baseline.bigram_nats, 2.5, 0.15);
}

/// A corpus of files, lines and compressed lines, prepared with a save after every batch.
class InterruptedPrepare : public Prepare {
 protected:
  InterruptedPrepare() {
    std::string lines;
    for (int i = 0; i < 30'000; ++i) lines += fmt::format("{{\"text\": \"{}\"}}\n", i * 7 % 7919);
    write_file(in_ / "d.jsonl", lines);
    write_file(in_ / "e.jsonl", lines);
    write_file(in_ / "z_copy.txt", essay("boats", 40));
    options_.save_bytes = 1;
  }

  /// Ends as a killed process does, after some documents.
  void interrupt(int num_batches) {
    struct Killed {};
    int num_left = num_batches;
    EXPECT_THROW(prepare(options_,
                         [&](std::int64_t, std::int64_t) {
                           if (num_left-- == 0) throw Killed();
                         }),
                 Killed);
  }
};

TEST_F(InterruptedPrepare, GoesOnToTheSameBytes) {
  prepare(options_, {});
  const std::string bin = read_file(out_ / "train_text_document.bin");
  const std::string idx = read_file(out_ / "train_text_document.idx");
  EXPECT_THAT(out_.names(), ElementsAre("train_text_document.bin", "train_text_document.idx"));
  for (int first = 1; first < 6; ++first) {
    fs::remove(out_ / "train_text_document.bin");
    fs::remove(out_ / "train_text_document.idx");
    interrupt(first);
    if (first == 3 || first == 4) interrupt(1);
    const PrepareSummary summary = prepare(options_, {});
    EXPECT_EQ(summary.num_resumed_bytes > 0, first > 1) << first;
    EXPECT_EQ(summary.num_skipped_files, 1);
    EXPECT_EQ(read_file(out_ / "train_text_document.bin"), bin) << first;
    EXPECT_EQ(read_file(out_ / "train_text_document.idx"), idx) << first;
    EXPECT_THAT(out_.names(), ElementsAre("train_text_document.bin", "train_text_document.idx"));
  }
}

TEST_F(InterruptedPrepare, BeginsAnewWhenAnythingIsDifferent) {
  interrupt(5);
  options_.append_eod = false;
  EXPECT_EQ(prepare(options_, {}).num_resumed_bytes, 0);
  options_.append_eod = true;
  interrupt(5);
  write_file(in_ / "a.txt", essay("apples", 41));
  EXPECT_EQ(prepare(options_, {}).num_resumed_bytes, 0);
  interrupt(5);
  write_file(out_ / "train_text_document.progress.json", "{\"signature\": 1");
  EXPECT_EQ(prepare(options_, {}).num_resumed_bytes, 0);
  EXPECT_THAT(out_.names(), ElementsAre("train_text_document.bin", "train_text_document.idx"));
}

}  // namespace
}  // namespace primus::data
