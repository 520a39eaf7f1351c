// The little of the driver API that a program around normquant needs: a device's primary context, buffers, a stream, a
// timer.
#pragma once

#include "cuda/driver.h"

#include <memory>
#include <span>
#include <string>

namespace nq::cli {

using DriverPtr = std::shared_ptr<const Driver>;

class DeviceBuffer {
public:
    DeviceBuffer(DriverPtr driver, CUdeviceptr address) : driver_(std::move(driver)), address_(address) {}
    DeviceBuffer(DeviceBuffer&& other) noexcept
        : driver_(std::move(other.driver_)), address_(std::exchange(other.address_, 0)) {}
    DeviceBuffer& operator=(DeviceBuffer&&) = delete;
    ~DeviceBuffer();

    CUdeviceptr address() const { return address_; }
    void* pointer() const { return reinterpret_cast<void*>(address_); }

private:
    DriverPtr driver_;
    CUdeviceptr address_;
};

class Timer {
public:
    Timer(DriverPtr driver, CUstream stream, CUevent begin, CUevent end)
        : driver_(std::move(driver)), stream_(stream), begin_(begin), end_(end) {}
    Timer(Timer&& other) noexcept
        : driver_(std::move(other.driver_)),
          stream_(other.stream_),
          begin_(std::exchange(other.begin_, nullptr)),
          end_(std::exchange(other.end_, nullptr)) {}
    Timer& operator=(Timer&&) = delete;
    ~Timer();

    Outcome start();
    Outcome finish();
    Result<double> seconds();  // from start to finish on the device's clock; waits for both
    Result<double> stop();     // finish() and seconds()

private:
    DriverPtr driver_;
    CUstream stream_;
    CUevent begin_;
    CUevent end_;
};

struct DeviceFacts {
    int ordinal = 0;
    std::string name;
    ComputeCapability capability;
    int multiprocessors = 0;
    int l2_bytes = 0;
    std::size_t memory_bytes = 0;
};

Result<int> device_count(const Driver& driver);
Result<DeviceFacts> device_facts(const Driver& driver, int ordinal);

// Holds the primary context, current to the calling thread, and one stream in it.
class Device {
public:
    static Result<Device> open(const DriverPtr& driver, int ordinal);
    Device(Device&& other) noexcept;
    Device& operator=(Device&&) = delete;
    ~Device();

    const DeviceFacts& facts() const { return facts_; }
    const DriverPtr& driver() const { return driver_; }
    CUstream stream() const { return stream_; }

    // The result of a call of the driver, with what was being done.
    Outcome outcome(CUresult result, const std::string& doing) const;
    Result<DeviceBuffer> allocate(std::size_t bytes);
    Result<DeviceBuffer> upload(std::span<const unsigned char> bytes);
    Outcome download(const DeviceBuffer& buffer, std::span<unsigned char> bytes);
    Outcome synchronize();
    Result<Timer> timer();

private:
    Device(DriverPtr driver, DeviceFacts facts, CUdevice device, CUstream stream)
        : driver_(std::move(driver)), facts_(std::move(facts)), device_(device), stream_(stream) {}

    DriverPtr driver_;  // empty after a move
    DeviceFacts facts_;
    CUdevice device_;
    CUstream stream_;
};

}  // namespace nq::cli
