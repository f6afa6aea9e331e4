#pragma once
// Wrong inputs with the exact text that each gets: tables in data/wrong_inputs, one block a case.
//
//   [name]
//   rule NAME | fault KIND      which rule, or which kind of fault before the rules, the case shows
//   words A B …  /  word A      words of the command line, cut at spaces / as it stands
//   set LINE                    lines of the experiment's overrides (else: mock_data: true)
//   head LINE  /  tail LINE     lines before and after the experiment
//   file LINE                   the whole experiment instead
//   also FILE LINE              another file beside it
//   env NAME=VALUE
//   train N  /  world N         a real train, a plan, on N processes
//   > TEXT                      what the user gets; \xHH above is one byte
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace primus::config {

struct WrongInput {
  std::string name;
  std::string subject;             // "rule deepep", "fault type"
  std::vector<std::string> lines;  // as written, without name, subject and text
  std::string text;                // one line a problem or note
};

/// Cases by file name, in order.
std::map<std::string, std::vector<WrongInput>> read_wrong_inputs();
void write_wrong_inputs(const std::string& file, const std::vector<WrongInput>& inputs);

/// What the user gets: problems, else notes as "note: key: text".
std::string outcome_of(const WrongInput& input);

/// Are the goldens to be rewritten (PRIMUS_UPDATE_GOLDEN=1)?
bool is_updating_goldens();

}  // namespace primus::config
