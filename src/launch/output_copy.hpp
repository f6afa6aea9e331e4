#pragma once
// A copy of everything that the launcher and its workers print, in a file.
#include <sys/types.h>

#include <string>

namespace primus::launch {

/// Where standard output goes beside the file. Standard error is always shown.
enum class Show { kAll, kErrorsOnly };

/// From start() on, both streams also go to the file; until then nothing happens. Ended by the destructor.
class OutputCopy {
 public:
  OutputCopy() = default;
  ~OutputCopy();
  OutputCopy(const OutputCopy&) = delete;
  OutputCopy& operator=(const OutputCopy&) = delete;

  /// Append to `file` ("": no file, for Show alone); its folder is created. Throws UserError if that cannot be done.
  void start(const std::string& file, Show show);

 private:
  int stdout_before_ = -1;
  int stderr_before_ = -1;
  pid_t copier_ = -1;
};

}  // namespace primus::launch
