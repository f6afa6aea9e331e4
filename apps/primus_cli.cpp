// primus-cli: everything that needs no tensors.
#include <string>
#include <vector>

#include "cli/run.hpp"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  return primus::cli::run(words);
}
