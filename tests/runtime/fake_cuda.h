// A libcuda without a GPU: a real shared object, found by path. It keeps a log of calls, fails where it is told to, and
// has devices, contexts and streams that a test arranges. What the real one refuses it refuses as well: code of another
// compute capability, shared memory that was not asked for on that device, contexts that are gone, a forked child. Not
// for concurrent tests: one current context for the whole process.
#pragma once

#include <normquant/params.h>

#include <cuda.h>

#include <sys/types.h>

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
    int most_shared = 227 << 10;  // bytes that a block may ask for
};

struct FakeContext {
    CUdevice device = 0;
    unsigned long long id = 0;
    bool destroyed = false;
};

struct FakeStream {
    CUcontext context = nullptr;
    bool capturing = false;
};

struct FakeLibrary {
    std::string image;  // what follows the ELF header of the cubin
    std::vector<CUcontext> loaded_in = {};
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;  // of the thread, when it was loaded or unloaded
    bool unloaded = false;
    std::map<CUdevice, unsigned> shared_bytes = {};  // that a block was allowed, by device
};

struct FakeLaunch {
    CUlaunchConfig config = {};  // its attributes are gone
    unsigned cluster = 0;        // blocks of a row, 0: no attribute
    bool overlap = false;        // programmatic stream serialization
    std::string image;
    normquant::Params params = {};
};

// What the occupancy of clusters was asked with.
struct FakeOccupancy {
    unsigned block_threads = 0, shared_bytes = 0, cluster = 0, attributes = 0;
    std::string image;
};

struct FakeCuda {
    std::mutex mutex;
    int version = 13000;
    std::map<std::string, CUresult> failures;
    int active_clusters = 16;      // the answer of the occupancy query
    int refused_images = 0;        // so many loads fail, whatever they load
    std::set<std::string> absent;  // cuGetProcAddress does not know these
    decltype(&::cuLaunchKernelEx) launch_instead = nullptr;  // does what cuLaunchKernelEx does, without mutex and log
    std::vector<FakeDevice> devices = {{9, 0, 132}, {12, 0, 188, 99 << 10}};
    std::deque<FakeContext> contexts;
    std::deque<FakeStream> streams;
    std::vector<CUcontext> current;  // a stack
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

    std::vector<std::string> calls;
    std::deque<FakeLibrary> libraries;
    std::vector<FakeLaunch> launches;
    std::vector<FakeOccupancy> occupancies;
    pid_t initialized_by = 0;
    unsigned long long next_id = 100;

    CUcontext add_context(CUdevice device) {
        contexts.push_back({device, next_id++});
        return reinterpret_cast<CUcontext>(&contexts.back());
    }
    void destroy(CUcontext context) { reinterpret_cast<FakeContext*>(context)->destroyed = true; }
    // At the place of one that was destroyed, or reset.
    void recreate(CUcontext context, CUdevice device) { *reinterpret_cast<FakeContext*>(context) = {device, next_id++}; }
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
