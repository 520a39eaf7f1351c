// warmup --bundle: the kernels of a plan as one file.
#pragma once

#include "runtime/context.h"
#include "warmup_plan.h"

#include <string>

namespace nq::cli {

// Before anything is compiled, as far as one can tell: a bundle or nothing yet, in a directory that may be written.
Outcome check_bundle_place(const std::string& path, bool shared);

struct WrittenBundle {
    std::size_t entries = 0;
    std::size_t kept = 0;     // of these, from before
    std::size_t dropped = 0;  // of other kernel sources than this library's, which it can never use
    std::uint64_t bytes = 0;
};
// From the context's cache, where the plan's kernels are by now, and from what the file has by now, so that one bundle can be
// warmed up in several runs, also at the same time.
Result<WrittenBundle> write_warm_bundle(Context& context, const WarmupPlan& plan, const std::string& path);

}  // namespace nq::cli
