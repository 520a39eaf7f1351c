// Warm-up: every variant of many problems for many targets into the cache, on a machine that needs no GPU.
#pragma once

#include "runtime/context.h"

#include <functional>
#include <span>

namespace nq {

// Gets each event in turn, one thread at a time; false stops what has not begun.
using PrecompileObserver = std::function<bool(const nq_precompile_event&)>;

// The first failure, in the order of problems, targets and variants, after everything was tried.
// threads: 0 for one a core.
// problems: an array whose element size is the struct_size of its first, as a newer caller's structs are larger.
Outcome precompile(Context& context, const nq_problem* problems, std::size_t problem_count,
                   std::span<const char* const> archs, unsigned threads, const PrecompileObserver& observer);

}  // namespace nq
