#include "device.h"

#include "errors.h"

#include <fmt/core.h>

namespace nq::cli {
namespace {

Outcome expect(const Driver& driver, CUresult result, const std::string& doing) {
    if (result == CUDA_SUCCESS) return Unit{};
    return driver.error(result, doing);
}

}  // namespace

DeviceBuffer::~DeviceBuffer() {
    if (address_ != 0) driver_->cuMemFree(address_);
}

Timer::~Timer() {
    if (begin_ != nullptr) driver_->cuEventDestroy(begin_);
    if (end_ != nullptr) driver_->cuEventDestroy(end_);
}

Outcome Timer::start() { return expect(*driver_, driver_->cuEventRecord(begin_, stream_), "recording an event"); }

Outcome Timer::finish() { return expect(*driver_, driver_->cuEventRecord(end_, stream_), "recording an event"); }

Result<double> Timer::stop() {
    if (const auto done = finish(); !done) return done.error();
    return seconds();
}

Result<double> Timer::seconds() {
    float milliseconds = 0;
    if (const auto done = expect(*driver_, driver_->cuEventSynchronize(end_), "waiting for the kernel"); !done) {
        return done.error();
    }
    const auto done = expect(*driver_, driver_->cuEventElapsedTime(&milliseconds, begin_, end_), "reading a timer");
    if (!done) return done.error();
    return milliseconds * 1e-3;
}

Result<int> device_count(const Driver& driver) {
    int count = 0;
    if (const auto done = expect(driver, driver.cuDeviceGetCount(&count), "counting devices"); !done)
        return done.error();
    return count;
}

Result<DeviceFacts> device_facts(const Driver& driver, int ordinal) {
    DeviceFacts facts;
    facts.ordinal = ordinal;
    const std::string doing = fmt::format("reading the properties of device {}", ordinal);
    CUdevice device = 0;
    if (const auto done = expect(driver, driver.cuDeviceGet(&device, ordinal), doing); !done) return done.error();
    char name[256] = "";
    if (const auto done = expect(driver, driver.cuDeviceGetName(name, sizeof name, device), doing); !done) {
        return done.error();
    }
    facts.name = name;
    const struct {
        CUdevice_attribute attribute;
        int* value;
    } wanted[] = {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &facts.capability.major},
                  {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &facts.capability.minor},
                  {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &facts.multiprocessors},
                  {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &facts.l2_bytes}};
    for (const auto& [attribute, value] : wanted) {
        const auto done = expect(driver, driver.cuDeviceGetAttribute(value, attribute, device), doing);
        if (!done) return done.error();
    }
    const auto done = expect(driver, driver.cuDeviceTotalMem(&facts.memory_bytes, device), doing);
    if (!done) return done.error();
    return facts;
}

Result<Device> Device::open(const DriverPtr& driver, int ordinal) {
    const auto count = device_count(*driver);
    if (!count) return count.error();
    if (ordinal >= *count) return failure(fmt::format("there is no device {}: the driver lists {}", ordinal, *count));
    auto facts = device_facts(*driver, ordinal);
    if (!facts) return facts.error();
    CUdevice handle = 0;
    if (const auto done = expect(*driver, driver->cuDeviceGet(&handle, ordinal), "opening the device"); !done) {
        return done.error();
    }
    CUcontext context = nullptr;
    const auto retained = expect(*driver, driver->cuDevicePrimaryCtxRetain(&context, handle), "retaining the context");
    if (!retained) return retained.error();
    Device device(driver, std::move(*facts), handle, nullptr);  // releases the context from here on
    if (const auto done = expect(*driver, driver->cuCtxPushCurrent(context), "making the context current"); !done) {
        return done.error();
    }
    const auto created =
        expect(*driver, driver->cuStreamCreate(&device.stream_, CU_STREAM_NON_BLOCKING), "creating a stream");
    if (!created) return created.error();
    return device;
}

Device::Device(Device&& other) noexcept
    : driver_(std::move(other.driver_)),
      facts_(std::move(other.facts_)),
      device_(other.device_),
      stream_(std::exchange(other.stream_, nullptr)) {}

Device::~Device() {
    if (!driver_) return;
    if (stream_ != nullptr) driver_->cuStreamDestroy(stream_);
    driver_->cuDevicePrimaryCtxRelease(device_);
}

Outcome Device::outcome(CUresult result, const std::string& doing) const { return expect(*driver_, result, doing); }

Result<DeviceBuffer> Device::allocate(std::size_t bytes) {
    CUdeviceptr address = 0;
    const auto done =
        outcome(driver_->cuMemAlloc(&address, bytes), fmt::format("placing {} bytes on {}", bytes, facts_.name));
    if (!done) return done.error();
    return DeviceBuffer(driver_, address);
}

Result<DeviceBuffer> Device::upload(std::span<const unsigned char> bytes) {
    auto buffer = allocate(bytes.size());
    if (!buffer) return buffer;
    const std::string doing = fmt::format("placing {} bytes on {}", bytes.size(), facts_.name);
    const auto copied = outcome(driver_->cuMemcpyHtoD(buffer->address(), bytes.data(), bytes.size()), doing);
    if (!copied) return copied.error();
    // The copy is ordered in the legacy stream only; from pageable memory it may still be under way.
    const auto finished = outcome(driver_->cuStreamSynchronize(nullptr), doing);
    if (!finished) return finished.error();
    return buffer;
}

Outcome Device::download(const DeviceBuffer& buffer, std::span<unsigned char> bytes) {
    return outcome(driver_->cuMemcpyDtoH(bytes.data(), buffer.address(), bytes.size()),
                   fmt::format("copying {} bytes from {}", bytes.size(), facts_.name));
}

Outcome Device::synchronize() { return outcome(driver_->cuStreamSynchronize(stream_), "waiting for the kernel"); }

Result<Timer> Device::timer() {
    CUevent events[2] = {};
    for (CUevent& event : events) {
        const auto done = outcome(driver_->cuEventCreate(&event, CU_EVENT_DEFAULT), "creating an event");
        if (!done) {
            if (events[0] != nullptr) driver_->cuEventDestroy(events[0]);
            return done.error();
        }
    }
    return Timer(driver_, stream_, events[0], events[1]);
}

}  // namespace nq::cli
