#pragma once
// Bytes that are not those that were written, as opposed to a checkpoint that is whole and does not fit the run.
#include "base/error.hpp"

namespace primus::checkpoint {

/// A checkpoint that is cut short, changed or unreadable. A run may take the one before it instead.
class DamagedError : public UserError {
 public:
  using UserError::UserError;
};

}  // namespace primus::checkpoint
