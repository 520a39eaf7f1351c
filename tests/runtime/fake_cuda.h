// A libcuda without a GPU: a real shared object, found by path. It keeps a log of calls, fails where it is told to, and
// has devices, contexts and streams that a test arranges. Not for concurrent tests: one current context for the whole
// process.
#pragma once

#include <normquant/params.h>

#include <cuda.h>

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace nq::test {

struct FakeDevice {
    int major = 0, minor = 0, multiprocessors = 0;
};

struct FakeContext {
    CUdevice device = 0;
    unsigned long long id = 0;
};

struct FakeStream {
    CUcontext context = nullptr;
    bool capturing = false;
};

struct FakeLibrary {
    std::string image;  // what follows the ELF header of the cubin
    CUcontext loaded_in = nullptr;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;  // of the thread, when it was loaded or unloaded
    bool unloaded = false;
};

struct FakeLaunch {
    CUlaunchConfig config = {};  // its attributes are gone
    unsigned cluster = 0;        // blocks of a row, 0: no attribute
    bool overlap = false;        // programmatic stream serialization
    std::string image;
    normquant::Params params = {};
};

struct FakeCuda {
    std::mutex mutex;
    int version = 13000;
    std::map<std::string, CUresult> failures;
    int active_clusters = 16;      // the answer of the occupancy query
    int refused_images = 0;        // so many loads fail, whatever they load
    std::set<std::string> absent;  // cuGetProcAddress does not know these
    decltype(&::cuLaunchKernelEx) launch_instead = nullptr;  // does what cuLaunchKernelEx does, without mutex and log
    std::vector<FakeDevice> devices = {{9, 0, 132}, {12, 0, 188}};
    std::deque<FakeContext> contexts;
    std::deque<FakeStream> streams;
    std::vector<CUcontext> current;  // a stack
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

    std::vector<std::string> calls;
    std::deque<FakeLibrary> libraries;
    std::vector<FakeLaunch> launches;

    CUcontext add_context(CUdevice device) {
        contexts.push_back({device, 100 + contexts.size()});
        return reinterpret_cast<CUcontext>(&contexts.back());
    }
    CUstream add_stream(CUcontext context) {
        streams.push_back({context, false});
        return reinterpret_cast<CUstream>(&streams.back());
    }
    void set_capturing(CUstream stream, bool capturing) {
        reinterpret_cast<FakeStream*>(stream)->capturing = capturing;
    }
};

}  // namespace nq::test

// Exported by the shared object, by these names.
extern "C" {
nq::test::FakeCuda* nq_fake_cuda();
void nq_fake_cuda_reset();
}
