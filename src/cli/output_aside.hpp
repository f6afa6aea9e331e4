#pragma once
// Standard output kept free for one document: what is printed meanwhile, by this program or a child, goes to the error
// stream.

namespace primus::cli {

/// From construction to destruction, standard output leads to standard error.
class OutputAside {
 public:
  OutputAside();
  ~OutputAside();
  OutputAside(const OutputAside&) = delete;
  OutputAside& operator=(const OutputAside&) = delete;

 private:
  int stdout_before_ = -1;
};

}  // namespace primus::cli
