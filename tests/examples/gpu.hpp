// Owners for what the C++ examples have on the GPU.
#pragma once

#include "gpu.h"

#include <normquant/normquant.hpp>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

struct NoGpu : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void check(CUresult result, const char* what) {
    if (result != CUDA_SUCCESS) throw std::runtime_error(std::string(what) + ": CUDA error " + std::to_string(static_cast<int>(result)));
}

class Device {
public:
    Device() {
        if (const char* why = gpu_open(&gpu_)) throw NoGpu(why);
    }
    ~Device() { gpu_close(&gpu_); }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    const Gpu* operator->() const { return &gpu_; }
    // A thread that does not call the CUDA runtime does this first.
    void make_current() const { check(gpu_.cuCtxSetCurrent(gpu_.context), "cuCtxSetCurrent"); }

private:
    Gpu gpu_ = {};
};

class Stream {
public:
    explicit Stream(const Device& device) : device_(device) {
        check(device->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    ~Stream() { device_->cuStreamDestroy(stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    CUstream get() const { return stream_; }
    void synchronize() const { check(device_->cuStreamSynchronize(stream_), "cuStreamSynchronize"); }

private:
    const Device& device_;
    CUstream stream_ = nullptr;
};

// An array on both sides.
template <class T>
class Array {
public:
    Array(const Device& device, std::size_t count) : device_(device), host(count) {
        if (count != 0) check(device->cuMemAlloc(&address_, count * sizeof(T)), "cuMemAlloc");
    }
    ~Array() {
        if (address_ != 0) device_->cuMemFree(address_);
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    T* device() const { return reinterpret_cast<T*>(address_); }
    void upload(const Stream& stream) const {
        if (!host.empty()) check(device_->cuMemcpyHtoDAsync(address_, host.data(), bytes(), stream.get()), "cuMemcpyHtoDAsync");
    }
    void download(const Stream& stream) {
        if (!host.empty()) check(device_->cuMemcpyDtoHAsync(host.data(), address_, bytes(), stream.get()), "cuMemcpyDtoHAsync");
    }

private:
    std::size_t bytes() const { return host.size() * sizeof(T); }

    const Device& device_;
    CUdeviceptr address_ = 0;

public:
    std::vector<T> host;
};

// One norm's tensors: inputs filled, outputs of the size that the problem asks for.
class Norm {
public:
    Norm(const Device& device, const nq_problem& problem, std::int64_t rows, std::uint32_t seed)
        : problem_(problem),
          rows_(rows),
          x(device, elements()),
          residual(device, problem.op == NQ_OP_ADD_RMSNORM ? elements() : 0),
          weight(device, problem.hidden),
          global_scale(device, problem.scale_format == NQ_SCALE_E4M3 ? 1 : 0),
          fp4(device, nqpp::fp4_bytes(problem, rows).value()),
          scales(device, nqpp::scale_bytes(problem, rows).value()) {
        fill(x.host.data(), x.host.size(), seed);
        fill(residual.host.data(), residual.host.size(), seed + 1);
        fill(weight.host.data(), weight.host.size(), seed + 2);
        for (float& scale : global_scale.host) scale = 448.0f * 6.0f / 8.0f;  // for |y| up to 8
    }

    void upload(const Stream& stream) const {
        for (const auto* array : {&x, &residual, &weight}) array->upload(stream);
        global_scale.upload(stream);
    }

    nqpp::Tensors tensors() const {
        nqpp::Tensors tensors;
        tensors.rows = rows_;
        tensors.x = x.device();
        tensors.residual = residual.device();
        tensors.weight = weight.device();
        tensors.global_scale = global_scale.device();
        tensors.fp4 = fp4.device();
        tensors.scales = scales.device();
        return tensors;
    }

    // Waits for the stream. The reference's threads: 0 for one a core.
    bool matches_reference(const Stream& stream, std::uint32_t threads) {
        std::vector<std::uint16_t> sum = residual.host;
        std::vector<std::uint8_t> codes(fp4.host.size()), block_scales(scales.host.size());
        residual.download(stream);
        fp4.download(stream);
        scales.download(stream);
        stream.synchronize();
        nqpp::HostTensors expected{
            .rows = rows_, .x = x.host, .weight = weight.host, .fp4 = codes, .scales = block_scales, .residual = sum};
        if (!global_scale.host.empty()) expected.global_scale = global_scale.host[0];
        nqpp::reference(problem_, expected, threads).value();
        return same_bytes("residual", residual.host.data(), sum.data(), sum.size() * sizeof sum[0]) &&
               same_bytes("fp4", fp4.host.data(), codes.data(), codes.size()) &&
               same_bytes("scales", scales.host.data(), block_scales.data(), block_scales.size());
    }

private:
    std::size_t elements() const { return static_cast<std::size_t>(rows_) * problem_.hidden; }

    nq_problem problem_;
    std::int64_t rows_;

public:
    Array<std::uint16_t> x, residual, weight;
    Array<float> global_scale;
    Array<std::uint8_t> fp4, scales;
};

// main() of an example: what it throws, as an exit code.
template <class Body>
int run_example(Body body) {
    try {
        return body();
    } catch (const NoGpu& error) {
        std::printf("skipped: no GPU here (%s)\n", error.what());
        return kSkipped;
    } catch (const nqpp::Exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return exit_code(error.status());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
