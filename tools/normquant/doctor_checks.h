// The examination and its parts. None creates the cache, none changes anything in it.
#pragma once

#include "findings.h"
#include "runtime/context.h"

namespace nq::cli {

// All of it. cache_dir: "" for the environment's.
Findings examine(const std::string& cache_dir, bool compile);
Json to_json(const Findings& findings);
std::string to_text(const Findings& findings);

// The environment without the variables that cannot be used, which are problems.
Environment check_environment(Findings& findings);

void check_cache(const ContextConfig& config, const Environment& environment, Findings& findings);

// compile: a kernel as well, in memory.
void check_libraries(const ContextConfig& config, bool compile, Findings& findings);

}  // namespace nq::cli
