#include "support/golden.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace nq::test {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(NORMQUANT_TEST_DATA) / "golden";

// A file that must be consumed to its last byte.
class File {
public:
    explicit File(const std::filesystem::path& path) : path_(path) {
        std::ifstream stream(path, std::ios::binary);
        if (!stream) throw std::runtime_error("cannot read " + path.string());
        bytes_.assign(std::istreambuf_iterator<char>(stream), {});
    }
    Bytes take(std::size_t count) {
        if (count > bytes_.size() - position_) throw std::runtime_error(path_.string() + " is too short");
        const auto first = bytes_.begin() + static_cast<std::ptrdiff_t>(position_);
        position_ += count;
        return Bytes(first, first + static_cast<std::ptrdiff_t>(count));
    }
    template <class T>
    T value() {
        T result;
        std::memcpy(&result, take(sizeof(T)).data(), sizeof(T));
        return result;
    }
    void end() const {
        if (position_ != bytes_.size()) throw std::runtime_error(path_.string() + " is too long");
    }

private:
    std::filesystem::path path_;
    Bytes bytes_;
    std::size_t position_ = 0;
};

std::vector<std::uint32_t> words(const Bytes& bytes) {
    std::vector<std::uint32_t> result(bytes.size() / 4);
    if (!result.empty()) std::memcpy(result.data(), bytes.data(), result.size() * 4);
    return result;
}

}  // namespace

std::vector<std::string> golden_names() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
        if (entry.path().extension() == ".case") names.push_back(entry.path().stem().string());
    }
    std::sort(names.begin(), names.end());
    return names;
}

GoldenCase load_golden(const std::string& name) {
    enum Flag : std::uint32_t { kAdd = 1, kBias = 2, kGlobalScale = 4, kYOut = 8 };
    GoldenCase golden;
    golden.name = name;

    File in(kFolder / (name + ".case"));
    if (in.take(4) != Bytes{'N', 'Q', 'C', '1'}) throw std::runtime_error(name + ".case has another magic than NQC1");
    golden.inputs.rows = in.value<std::uint32_t>();
    nq_problem problem = NQ_PROBLEM_INIT;
    problem.hidden = in.value<std::uint32_t>();
    problem.block_size = in.value<std::uint32_t>();
    problem.dtype = in.value<std::uint32_t>();
    problem.weight_dtype = in.value<std::uint32_t>();
    problem.scale_format = in.value<std::uint32_t>();
    problem.scale_layout = in.value<std::uint32_t>();
    const auto flags = in.value<std::uint32_t>();
    problem.op = (flags & kAdd) != 0 ? NQ_OP_ADD_RMSNORM : NQ_OP_RMSNORM;
    if ((flags & kBias) != 0) problem.flags |= NQ_PROBLEM_WEIGHT_BIAS_ONE;
    if ((flags & kYOut) != 0) problem.flags |= NQ_PROBLEM_Y_OUT;
    Result<Problem> checked = problem_from_c(&problem);
    if (!checked) throw std::runtime_error(name + ".case: " + checked.error().message);
    golden.problem = *checked;
    golden.inputs.eps = in.value<float>();
    const auto global_scale = in.value<float>();
    if ((flags & kGlobalScale) != 0) golden.inputs.global_scale = global_scale;
    const std::size_t elements = static_cast<std::size_t>(golden.inputs.rows) * problem.hidden;
    golden.inputs.x = in.take(elements * 2);
    golden.inputs.weight = in.take(problem.hidden * (problem.weight_dtype == NQ_FP32 ? 4u : 2u));
    if ((flags & kAdd) != 0) golden.inputs.residual = in.take(elements * 2);
    in.end();

    File out(kFolder / (name + ".out"));
    std::size_t sizes[6];
    for (std::size_t& size : sizes) size = out.value<std::uint64_t>();
    golden.expected.fp4 = out.take(sizes[0]);
    golden.expected.scales = out.take(sizes[1]);
    golden.expected.residual = out.take(sizes[2]);
    golden.expected.y_out = out.take(sizes[3]);
    golden.expected.sum_of_squares = words(out.take(sizes[4]));
    golden.expected.rstd = words(out.take(sizes[5]));
    out.end();
    return golden;
}

}  // namespace nq::test
