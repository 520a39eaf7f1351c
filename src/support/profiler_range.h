// A named range in a profiler's timeline, of NVTX: what prepare, compile and load take. Nothing where no profiler is attached.
#pragma once

#include <string>

namespace nq {

// Whether the build had NVTX's headers; without, a range is nothing.
bool profiler_ranges_built_in();

class ProfilerRange {
public:
    explicit ProfilerRange(const std::string& text);
    ~ProfilerRange();
    ProfilerRange(const ProfilerRange&) = delete;
    ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace nq
