// The three ways a command can fail, told apart by the status of the error.
#pragma once

#include "support/result.h"

namespace nq::cli {

enum ExitCode : int { kOk = 0, kFailed = 1, kUsage = 2, kPartial = 3 };

// A bad option value or an unusable input file: exit code 2.
Error usage_error(std::string message);
// The request was fine but could not be carried out: exit code 1.
Error failure(std::string message);
ExitCode exit_code_of(const Error& error);

// The outcome of a call of the C API, with its error text.
Outcome check(nq_status status);

}  // namespace nq::cli
