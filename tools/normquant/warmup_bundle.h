// warmup --bundle: the kernels of a plan as one file.
#pragma once

#include "runtime/context.h"
#include "warmup_plan.h"

#include <string>

namespace nq::cli {

// What it has already is kept, so that one bundle can be warmed up in several runs. An error if there is a file that is no bundle.
Result<std::optional<Bundle>> open_present_bundle(const std::string& path, bool shared);

struct WrittenBundle {
    std::size_t entries = 0;
    std::size_t kept = 0;  // of these, from before
    std::uint64_t bytes = 0;
};
// From the context's cache, where the plan's kernels are by now.
Result<WrittenBundle> write_warm_bundle(Context& context, const WarmupPlan& plan, const std::string& path,
                                        const std::optional<Bundle>& present);

}  // namespace nq::cli
