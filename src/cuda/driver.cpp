#include "cuda/driver.h"

#include "cuda/library_file.h"

#include <dlfcn.h>

#include <fmt/format.h>

#include <utility>

namespace nq {
namespace {

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

constexpr int kOldestDriver = 12000;  // R525

std::string text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

Error too_old(const Driver& driver, const std::string& lacking) {
    return Error{NQ_ERR_DRIVER_TOO_OLD,
                 fmt::format("the driver {} ({}) {}; R525 (CUDA {}) or newer is needed", driver.path,
                             driver.version ? "supports CUDA " + text(driver.version) : "of unknown version", lacking,
                             text(kOldestDriver)),
                 {}};
}

nq_status status_of(CUresult result) {
    switch (result) {
        case CUDA_ERROR_OUT_OF_MEMORY:
            return NQ_ERR_OUT_OF_MEMORY;
        case CUDA_ERROR_INVALID_CONTEXT:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
            return NQ_ERR_NO_CONTEXT;
        case CUDA_ERROR_STUB_LIBRARY:  // the toolkit's libcuda for linking, found in place of a driver
            return NQ_ERR_DRIVER_MISSING;
        case CUDA_ERROR_NO_DEVICE:
        case CUDA_ERROR_INVALID_DEVICE:
            return NQ_ERR_UNSUPPORTED_DEVICE;
        case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
            return NQ_ERR_DRIVER_TOO_OLD;
        default:
            return NQ_ERR_DRIVER;
    }
}

}  // namespace

bool is_of_earlier_work(CUresult result) {
    // Names that headers of CUDA 12.8 may lack.
    constexpr auto kContained = static_cast<CUresult>(226), kTensorMemoryLeak = static_cast<CUresult>(721);
    constexpr auto kExternalDevice = static_cast<CUresult>(911);
    switch (result) {
        case kContained:
        case kTensorMemoryLeak:
        case kExternalDevice:
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_NVLINK_UNCORRECTABLE:
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_LAUNCH_FAILED:
            return true;
        default:
            return false;
    }
}

Error Driver::error(CUresult result, const std::string& doing) const {
    const char* name = nullptr;
    const char* description = nullptr;
    if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown CUDA error";
    if (cuGetErrorString(result, &description) != CUDA_SUCCESS || description == nullptr)
        description = "no description";
    return Error{status_of(result),
                 fmt::format("{}: {} ({}): {}{}", doing, name, static_cast<int>(result), description,
                             is_of_earlier_work(result) ? ". The cause is work that was enqueued earlier in this CUDA context, by normquant "
                                                          "or by others; nothing more runs in the context"
                                                        : ""),
                 {},
                 static_cast<int>(result)};
}

Result<std::shared_ptr<const Driver>> load_driver(const std::string& explicit_path) {
    const OpenedLibrary library = open_library(explicit_path.empty() ? "libcuda.so.1" : explicit_path);
    if (library.handle == nullptr) {
        return Error{
            NQ_ERR_DRIVER_MISSING,
            fmt::format("libcuda was not found: {}. Install the NVIDIA driver, or name the file in NORMQUANT_LIBCUDA",
                        library.error),
            {}};
    }
    auto driver = std::make_shared<Driver>();
    driver->path = library.path;

    if (auto get_version =
            reinterpret_cast<decltype(driver->cuDriverGetVersion)>(::dlsym(library.handle, "cuDriverGetVersion"))) {
        get_version(&driver->version);
    }
    const auto get = reinterpret_cast<GetProcAddress>(::dlsym(library.handle, "cuGetProcAddress_v2"));
    if (get == nullptr) return too_old(*driver, "lacks cuGetProcAddress_v2");
        // The legacy default stream, whatever the caller was compiled with: NULL means one thing in the C API.
#define NQ_BIND(function, since)                                                                          \
    {                                                                                                     \
        void* address = nullptr;                                                                          \
        CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;                      \
        if (get(#function, &address, since, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) != CUDA_SUCCESS || \
            found != CU_GET_PROC_ADDRESS_SUCCESS || address == nullptr) {                                 \
            return too_old(*driver, "lacks " #function);                                                  \
        }                                                                                                 \
        driver->function = reinterpret_cast<decltype(driver->function)>(address);                         \
    }
    NQ_DRIVER_FUNCTIONS(NQ_BIND)
#undef NQ_BIND

    if (driver->version < kOldestDriver) return too_old(*driver, "is too old");
    const CUresult initialized = driver->cuInit(0);
    if (initialized == CUDA_ERROR_NOT_INITIALIZED) {
        // What a child of fork() gets when its parent had initialized CUDA, by whatever library.
        Error error =
            driver->error(initialized, "cuInit, most likely in a forked child of a process that had initialized CUDA");
        error.status = NQ_ERR_FORKED;
        return error;
    }
    if (initialized != CUDA_SUCCESS) return driver->error(initialized, "cuInit of " + driver->path);
    return std::shared_ptr<const Driver>(std::move(driver));
}

}  // namespace nq
