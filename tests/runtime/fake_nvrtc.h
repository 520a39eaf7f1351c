// A libnvrtc that compiles nothing: a real shared object, found by path. It claims any version and targets, and its
// cubin is an ELF header followed by the line of the source that names plan and target.
#pragma once

#ifndef FAKE_NVRTC_MAJOR
#define FAKE_NVRTC_MAJOR 13
#define FAKE_NVRTC_MINOR 0
#endif

#include <mutex>
#include <string>
#include <vector>

namespace nq::test {

struct FakeNvrtc {
    std::mutex mutex;
    int major = FAKE_NVRTC_MAJOR, minor = FAKE_NVRTC_MINOR;
    std::vector<int> archs = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
    bool archs_fail = false;   // it does not list its targets
    bool fail = false;         // every compile fails
    bool empty_cubin = false;  // compiles succeed without a cubin
    std::string log;           // NUL-terminated by the getter, as NVRTC does

    int milliseconds = 0;      // that a compile takes
    std::string count_file;    // gets a byte for each compile, of whatever process

    int opened = 0;            // times that somebody asked for the version
    int compiles = 0;
    int running = 0, most_running = 0;  // compiles at a time
    int live_programs = 0;
    std::vector<std::string> options;  // of the last compile
    std::vector<std::string> headers;  // names given in memory
};

}  // namespace nq::test

extern "C" {
nq::test::FakeNvrtc* nq_fake_nvrtc();
void nq_fake_nvrtc_reset();
}
