#include "support/profiler_range.h"

// NVTX is headers alone: a profiler names its library in a variable, and they open it. Not every toolkit has them.
#ifdef NORMQUANT_NVTX

#include <nvtx3/nvToolsExt.h>

#include <cstdlib>

namespace nq {
namespace {

// nullptr without a profiler. The headers would open what a plain getenv says, in a program of other privileges as well.
nvtxDomainHandle_t domain() {
    static nvtxDomainHandle_t const handle =
        ::secure_getenv("NVTX_INJECTION64_PATH") != nullptr ? nvtxDomainCreateA("normquant") : nullptr;
    return handle;
}

}  // namespace

bool profiler_ranges_built_in() { return true; }

ProfilerRange::ProfilerRange(const std::string& text) {
    if (domain() == nullptr) return;
    nvtxEventAttributes_t event = {};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = text.c_str();
    nvtxDomainRangePushEx(domain(), &event);
}

ProfilerRange::~ProfilerRange() {
    if (domain() != nullptr) nvtxDomainRangePop(domain());
}

}  // namespace nq

#else

namespace nq {

bool profiler_ranges_built_in() { return false; }

ProfilerRange::ProfilerRange(const std::string&) {}
ProfilerRange::~ProfilerRange() = default;

}  // namespace nq

#endif
