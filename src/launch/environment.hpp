#pragma once
// Variables of the environment: what each of those that users of Primus export means here, what one of them brings
// along, and what `--env` takes.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace primus::launch {

using Variables = std::map<std::string, std::string>;

/// The environment of this program.
Variables current_environment();

/// Variables that others switch on for the workers (USING_UEP, USING_AINIC, PRIMUS_DETERMINISTIC), without those that
/// `environment` sets itself.
Variables derived_variables(const Variables& environment);

/// One variable with what it means here.
struct VariableUse {
  std::string name;
  std::string value;  // "(hidden)" for keys and tokens
  std::string effect;
};

/// Those of `environment` that have to do with a run, with what they do; the rest of the environment is not listed.
std::vector<VariableUse> explain_variables(const Variables& environment);

/// What the variable may be, "0 or 1", if its value is known to be wrong; empty: nothing to find fault with.
std::string expected_value(std::string_view name, std::string_view value);

/// Is it one of the variables that go into a container without being named (PRIMUS_, NCCL_, …)?
bool is_forwarded_to_containers(std::string_view name);

/// A value that is shown to nobody: keys and tokens.
bool is_secret(std::string_view name);

/// kNotSet: a bare NAME that the environment does not have.
enum class Added { kYes, kNotSet };

/// One `--env`: NAME=value, NAME (taken from the environment, if it is set there), or a file of such lines with
/// comments. Throws ConfigError; `source` names the place in messages.
Added add_variables(const std::string& text, const std::string& source, Variables& variables);

/// NNODES, NODE_RANK, GPUS_PER_NODE, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must make sense together, and every
/// variable whose values are known must have one of them, unless PRIMUS_SKIP_VALIDATION is 1 there or in the
/// environment. Every fault, with the variable as its key and without a place.
std::vector<Problem> problems_of_variables(const Variables& variables);

/// Inside a Slurm job: those of NNODES, NODE_RANK and MASTER_ADDR that are not set, as Slurm says them; nothing
/// elsewhere. An empty variable counts as one that is not set.
Variables slurm_variables(const Variables& environment);

/// The variable of Slurm's that stands in for `name`; any other name is its own.
std::string slurm_name(std::string_view name);

/// First host of a Slurm node list: "node[03-05,9],x" gives node03.
std::string first_host(std::string_view node_list);

}  // namespace primus::launch
