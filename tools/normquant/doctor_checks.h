// The parts of normquant doctor. None creates the cache, none changes anything in it.
#pragma once

#include "findings.h"
#include "runtime/context.h"

namespace nq::cli {

// The environment without the variables that cannot be used, which are problems.
Environment check_environment(Findings& findings);

void check_cache(const ContextConfig& config, const Environment& environment, Findings& findings);

// compile: a kernel as well, in memory.
void check_libraries(const ContextConfig& config, bool compile, Findings& findings);

}  // namespace nq::cli
