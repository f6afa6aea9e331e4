#include "data/prepare_progress.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.hpp"
#include "base/files.hpp"

namespace primus::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

}  // namespace

PrepareStateFile::PrepareStateFile(std::string path, std::string signature)
    : path_(std::move(path)), signature_(std::move(signature)) {}

std::optional<PrepareState> PrepareStateFile::load() const {
  std::error_code ignored;
  if (!fs::is_regular_file(path_, ignored)) return std::nullopt;
  // It is replaced as a whole, so that a damaged one is not ours: the work begins anew.
  try {
    const Json json = Json::parse(read_file(path_));
    if (json.at("signature") != signature_) return std::nullopt;
    PrepareState state;
    state.position = {json.at("file"), json.at("offset"), json.at("lines")};
    state.written = {json.at("sequences"), json.at("documents_written"), json.at("tokens")};
    state.num_documents = json.at("documents");
    state.num_text_bytes = json.at("text_bytes");
    return state;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

void PrepareStateFile::save(const PrepareState& state) const {
  const Json json = {{"signature", signature_},
                     {"file", state.position.file},
                     {"offset", state.position.offset},
                     {"lines", state.position.num_lines},
                     {"sequences", state.written.num_sequences},
                     {"documents_written", state.written.num_documents},
                     {"tokens", state.written.num_tokens},
                     {"documents", state.num_documents},
                     {"text_bytes", state.num_text_bytes}};
  write_file(path_, json.dump(1) + "\n");
}

void PrepareStateFile::remove() const {
  std::error_code ignored;
  fs::remove(path_, ignored);
}

std::string signature_of(const InputList& inputs) {
  std::string signature;
  for (const InputFile& file : inputs.files) {
    std::error_code ignored;
    const auto time = fs::last_write_time(file.path, ignored).time_since_epoch().count();
    signature += fmt::format("{} {} {} {}\n", file.path, static_cast<int>(file.kind), file.num_bytes, time);
  }
  return signature;
}

}  // namespace primus::data
