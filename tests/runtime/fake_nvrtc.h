// A libnvrtc that compiles nothing: a real shared object, found by path. It claims any version and targets, and its
// cubin is an ELF header followed by the line of the source that names plan and target.
#pragma once

#include <mutex>
#include <string>
#include <vector>

namespace nq::test {

struct FakeNvrtc {
    std::mutex mutex;
    int major = 13, minor = 0;
    std::vector<int> archs = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
    bool archs_fail = false;   // it does not list its targets
    bool fail = false;         // every compile fails
    bool empty_cubin = false;  // compiles succeed without a cubin
    std::string log;           // NUL-terminated by the getter, as NVRTC does

    int compiles = 0;
    int live_programs = 0;
    std::vector<std::string> options;  // of the last compile
    std::vector<std::string> headers;  // names given in memory
};

}  // namespace nq::test

extern "C" {
nq::test::FakeNvrtc* nq_fake_nvrtc();
void nq_fake_nvrtc_reset();
}
