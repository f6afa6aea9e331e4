#pragma once
// A run in MLflow's file store: folders and text files that `mlflow ui --backend-store-uri DIR` and the mlflow package
// read. Nothing is sent anywhere.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace primus::train {

/// What names a run, and where its store lies.
struct MlflowNames {
  std::filesystem::path store;
  std::string experiment;
  std::string run;
  std::string user;
};

class MlflowRun {
 public:
  /// How it ended, as MLflow counts.
  enum class Status { kRunning = 1, kFinished = 3, kFailed = 4, kKilled = 5 };

  /// Starts a run, or goes on with the one that `id_file` names: then what lies behind `last_step` is taken out, as it
  /// comes again. `id_file` is written. Throws UserError if the store cannot be written.
  MlflowRun(MlflowNames names, const std::filesystem::path& id_file, std::int64_t last_step);
  /// A run that nobody ended has failed.
  ~MlflowRun();
  MlflowRun(const MlflowRun&) = delete;
  MlflowRun& operator=(const MlflowRun&) = delete;

  const std::filesystem::path& folder() const { return folder_; }

  /// Throw UserError where the disk refuses.
  void parameter(const std::string& key, const std::string& value) const;
  void tag(const std::string& key, const std::string& value) const;
  void metric(const std::string& key, double value, std::int64_t step) const;
  /// A copy of the file under artifacts/FOLDER; "": directly there.
  void artifact(const std::filesystem::path& file, const std::string& folder) const;
  void end(Status status);

 private:
  void write_meta(Status status, std::int64_t end_ms) const;
  void cut_metrics(std::int64_t last_step) const;

  MlflowNames names_;
  std::string experiment_id_;
  std::string id_;
  std::filesystem::path folder_;
  std::int64_t start_ms_ = 0;
  bool has_ended_ = false;
};

/// The folder that MLFLOW_TRACKING_URI names ("" or file:... or a path), or the standard one. Throws ConfigError for
/// the address of a server.
std::filesystem::path mlflow_store(const std::string& uri, const std::filesystem::path& standard);

}  // namespace primus::train
