#include "train/saver.hpp"

#include <chrono>

#include "base/files.hpp"
#include "base/text.hpp"

namespace primus::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Saver::Saver(SaveOptions options) : options_(std::move(options)) {
  if (!is_on()) return;
  make_folder(*options_.folder);
  lock_ = std::make_unique<FolderLock>(*options_.folder);
  checkpoint::CheckpointRoot(*options_.folder).remove_left_overs();
}

Saver::~Saver() {
  if (in_flight_.valid()) in_flight_.wait();
}

Saver::Outcome Saver::write(const checkpoint::CheckpointContent& content) const {
  const Clock::time_point start = Clock::now();
  const checkpoint::CheckpointRoot root(*options_.folder);
  Outcome outcome{.iteration = content.iteration};
  try {
    outcome.num_bytes = checkpoint::write_training_checkpoint(root.folder(content.iteration), content);
    root.set_latest(content.iteration);
  } catch (const std::exception& error) {
    outcome.error = error.what();
    return outcome;
  }
  outcome.seconds = seconds_since(start);
  try {
    root.retain(options_.retention, content.iteration);
  } catch (const UserError& error) {
    outcome.warning = error.what();
  }
  return outcome;
}

void Saver::tell(const Outcome& outcome, Reporter& reporter) {
  failure_.reset();
  if (!outcome.error.empty()) {
    failure_ = outcome.error;
    const auto last = checkpoint::CheckpointRoot(*options_.folder).latest();
    reporter.alarm(fmt::format(
        "ERROR: the checkpoint of iteration {} is not saved: {}\n"
        "       training goes on; {}",
        outcome.iteration, outcome.error,
        last ? fmt::format("the last whole checkpoint is that of iteration {}", *last) : "there is no checkpoint yet"));
    return;
  }
  reporter.message(fmt::format(" saved the checkpoint of iteration {} to {} ({} in {:.3f} s)", outcome.iteration,
                               *options_.folder, format_bytes(outcome.num_bytes), outcome.seconds));
  if (!outcome.warning.empty()) reporter.alarm(fmt::format("WARNING: an old checkpoint stays: {}", outcome.warning));
}

void Saver::save(const std::vector<NamedTensor>& tensors, checkpoint::CheckpointContent content, When when,
                 Reporter& reporter) {
  if (!is_on()) return;
  finish(reporter);
  const bool beside = when == When::kAsConfigured && options_.writing == SaveOptions::Writing::kBesideTraining;
  if (beside) copies_ = host_copies(tensors);
  for (const NamedTensor& tensor : beside ? copies_ : tensors) content.tensors.push_back(source_of(tensor));
  if (!beside) return tell(write(content), reporter);
  in_flight_ = std::async(std::launch::async, [this, content = std::move(content)] { return write(content); });
}

void Saver::poll(Reporter& reporter) {
  if (in_flight_.valid() && in_flight_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) finish(reporter);
}

void Saver::finish(Reporter& reporter) {
  if (!in_flight_.valid()) return;
  const Outcome outcome = in_flight_.get();
  copies_.clear();
  tell(outcome, reporter);
  if (saved_beside_ && outcome.error.empty()) saved_beside_(outcome.iteration);
}

}  // namespace primus::train
