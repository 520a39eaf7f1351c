#include "fake_nvrtc.h"

#include <elf.h>
#include <fcntl.h>
#include <nvrtc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

using namespace nq::test;

struct _nvrtcProgram {
    std::string source;
    std::string cubin;
};

namespace {

FakeNvrtc& fake() {
    static FakeNvrtc* const state = new FakeNvrtc;
    return *state;
}

std::string make_cubin(const std::string& source) {
    Elf64_Ehdr header = {};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_machine = EM_CUDA;
    header.e_ehsize = sizeof header;
    const std::size_t second = source.find('\n') + 1;
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) +
           source.substr(second, source.find('\n', second) - second) + '\0';
}

void count_compile(const std::string& path) {
    const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ::write(file, "x", 1) != 1) std::abort();
    ::close(file);
}

}  // namespace

extern "C" {

FakeNvrtc* nq_fake_nvrtc() { return &fake(); }

void nq_fake_nvrtc_reset() {
    fake().~FakeNvrtc();
    new (&fake()) FakeNvrtc;
}

nvrtcResult nvrtcVersion(int* major, int* minor) {
    const std::lock_guard lock(fake().mutex);
    ++fake().opened;
    *major = fake().major;
    *minor = fake().minor;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
    *count = static_cast<int>(fake().archs.size());
    return fake().archs_fail ? NVRTC_ERROR_INTERNAL_ERROR : NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int* archs) {
    for (const int arch : fake().archs) *archs++ = arch;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*, int count, const char* const*,
                               const char* const* names) {
    const std::lock_guard lock(fake().mutex);
    fake().headers.assign(names, names + count);
    ++fake().live_programs;
    *program = new _nvrtcProgram{source, ""};
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
    const std::lock_guard lock(fake().mutex);
    --fake().live_programs;
    delete *program;
    *program = nullptr;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
    std::unique_lock lock(fake().mutex);
    fake().options.assign(options, options + count);
    if (!fake().count_file.empty()) count_compile(fake().count_file);
    fake().most_running = std::max(fake().most_running, ++fake().running);
    const std::chrono::milliseconds takes(fake().milliseconds);
    lock.unlock();
    std::this_thread::sleep_for(takes);
    lock.lock();
    --fake().running;
    if (fake().fail) return NVRTC_ERROR_COMPILATION;
    ++fake().compiles;
    if (!fake().empty_cubin) program->cubin = make_cubin(program->source);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
    *size = program->cubin.size();
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
    std::memcpy(cubin, program->cubin.data(), program->cubin.size());
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram, size_t* size) {
    *size = 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTX(nvrtcProgram, char* ptx) {
    *ptx = '\0';
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t* size) {
    *size = fake().log.size() + 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* log) {
    std::memcpy(log, fake().log.c_str(), fake().log.size() + 1);
    return NVRTC_SUCCESS;
}

const char* nvrtcGetErrorString(nvrtcResult result) {
    return result == NVRTC_ERROR_COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_FAKE";
}

}  // extern "C"
