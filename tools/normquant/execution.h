// One call of the operator on host data: on the CPU reference, or on a GPU with the copies around it.
#pragma once

#include "device.h"

#include <optional>
#include <vector>

namespace nq::cli {

struct Call {
    nq_problem problem;
    std::int64_t rows = 0;
    float eps = 0;
    std::optional<float> global_scale;
    const std::vector<unsigned char>* x = nullptr;  // contiguous rows
    const std::vector<unsigned char>* weight = nullptr;
};

struct Outputs {
    std::vector<unsigned char> fp4;
    std::vector<unsigned char> scales;
};

// rstd: where to put the normalization factor of each row, or nullptr.
Result<Outputs> run_reference(const Call& call, std::vector<float>* rstd = nullptr);

inline constexpr unsigned kTimedBatches = 9;
inline constexpr unsigned kLaunchesPerBatch = 20;

struct GpuOutputs : Outputs {
    double seconds = 0;  // of one launch: the median over batches; 0 when it was not timed
};
Result<GpuOutputs> run_on_gpu(Device& device, nq_context* context, const Call& call, bool timed);

// Bytes that one call must read and write.
std::uint64_t traffic_bytes(const Call& call, const Outputs& outputs);

// Nothing if equal; else which bytes differ, for people.
std::optional<std::string> difference(const Outputs& reference, const Outputs& other);

}  // namespace nq::cli
