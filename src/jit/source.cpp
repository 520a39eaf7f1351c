#include "jit/source.h"

#include <normquant/geometry.h>
#include <normquant/params.h>

#include <fmt/format.h>

namespace nq {
namespace {

struct Source {
    const char *header, *function;
};
Source source_of(Form form) {
    switch (form) {
        case Form::plain: return {"normquant/rmsnorm_fp4.cuh", "rmsnorm_fp4"};
        case Form::staged: return {"normquant/staged.cuh", "rmsnorm_fp4_staged"};
        case Form::split: return {"normquant/split.cuh", "rmsnorm_fp4_split"};
    }
    return {"", ""};
}

}  // namespace

std::string render_source(const Problem& problem, const Plan& plan, const Arch& arch) {
    const ArchFeatures feature = features(arch);
    const std::uint32_t hidden = problem.hidden, threads = plan.threads_per_row;
    const bool staged = plan.form == Form::staged;
    const bool held = normquant::row_in_registers(hidden, threads) || staged;
    const bool products = staged || (plan.form == Form::plain && normquant::products_in_registers(hidden, threads));
    const std::uint32_t elements = normquant::half_granules(hidden, threads) ? 8 : 16;
    const std::uint32_t slots = normquant::slots_per_thread(hidden, threads), turns = normquant::turns(hidden);
    const std::uint32_t pieces = held ? normquant::granules_per_thread(hidden, threads) : 1;
    const normquant::Fp4Path path = feature.fp4_convert  ? normquant::kFp4Native
                                    : feature.u16x2_min ? normquant::kFp4Packed
                                                        : normquant::kFp4Scalar;
    // A target that could convert under another name of it: its compiler takes more registers for the packed path.
    const bool fallback = path == normquant::kFp4Packed && feature.loads_256;
    // Where 80 registers were found to do: UE8M0 spills.
    const bool fp32_weight = problem.weight_dtype == DType::fp32;
    const bool lean = path == normquant::kFp4Packed && !fallback && !fp32_weight && problem.scale_format == ScaleFormat::e4m3;
    return fmt::format(
        R"(// {problem}
// {plan} {arch}
{include}

namespace normquant {{
struct Config {{
    static constexpr u32 hidden = {hidden}, dtype = {dtype}, weight_dtype = {weight}, block_size = {block}, scale_format = {format};
    static constexpr bool swizzled = {swizzled}, linear = {linear}, add = {add}, weight_bias = {bias}, y_out = {y_out};
    static constexpr bool device_rows = {device_rows}, batches = {batches};
    static constexpr u32 tree = {tree}, rounds = {rounds}, slots = {slots}, turns = {turns}, block32_partner = {partner};
    static constexpr bool in_registers = {in_registers};
    static constexpr u32 threads_per_row = {threads}, rows_per_block = {rows}, load_bytes = {load}, cluster = {cluster};
    static constexpr u32 row_groups = {groups}, row_buffers = {buffers};
    static constexpr u32 fp4_path = {path};
    static constexpr bool native_e4m3 = {native_e4m3}, packed_f32 = {packed_f32}, copy_to_cta = {copy_to_cta}, overlap = {overlap};
    static constexpr bool hold_products = {products_held};
    static constexpr u32 kElements = {elements}, kVector = {vector}, kPieces = {pieces}, kProducts = {products}, kLanes = {lanes}, kTurnUnroll = {unroll};
}};
// The host planned with these; both sides compute them from the same header.
static_assert(tree_threads(Config::hidden) == Config::tree && column_rounds(Config::hidden) == Config::rounds, "");
static_assert(slots_per_thread(Config::hidden, Config::threads_per_row) == Config::slots && turns(Config::hidden) == Config::turns, "");
static_assert(row_in_registers(Config::hidden, Config::threads_per_row) == Config::in_registers, "");
static_assert(threads_per_row_valid(Config::hidden, Config::threads_per_row) && sizeof(Params) == {params}, "");
}}

extern "C" __global__ void __launch_bounds__({block_threads}, {resident}) {entry}(const __grid_constant__ normquant::Params params) {{
    normquant::{function}(normquant::Config{{}}, normquant::Block{{}}, params);
}}
)",
        fmt::arg("problem", canonical_text(problem)), fmt::arg("plan", canonical_text(plan)), fmt::arg("arch", arch.name()),
        fmt::arg("hidden", hidden), fmt::arg("dtype", static_cast<std::uint32_t>(problem.dtype)),
        fmt::arg("weight", static_cast<std::uint32_t>(problem.weight_dtype)), fmt::arg("block", problem.block_size),
        fmt::arg("format", static_cast<std::uint32_t>(problem.scale_format)),
        fmt::arg("swizzled", problem.swizzled()), fmt::arg("linear", problem.linear()), fmt::arg("add", problem.adds()),
        fmt::arg("bias", problem.weight_bias_one), fmt::arg("y_out", problem.y_out), fmt::arg("device_rows", problem.device_rows), fmt::arg("batches", problem.batches), fmt::arg("threads", threads),
        fmt::arg("load", plan.load_bytes), fmt::arg("path", static_cast<std::uint32_t>(path)),
        fmt::arg("native_e4m3", feature.e4m3_convert), fmt::arg("packed_f32", feature.packed_f32), fmt::arg("elements", elements),
        fmt::arg("pieces", pieces), fmt::arg("products", products ? pieces : 1), fmt::arg("products_held", products),
        fmt::arg("rows", plan.rows_per_block()), fmt::arg("cluster", plan.cluster), fmt::arg("groups", plan.row_groups),
        fmt::arg("buffers", plan.row_buffers), fmt::arg("copy_to_cta", feature.copy_to_cta), fmt::arg("overlap", problem.overlap && feature.overlap),
        fmt::arg("vector", plan.vector),
        fmt::arg("include", fmt::format("#include <{}>", source_of(plan.form).header)), fmt::arg("function", source_of(plan.form).function),
        fmt::arg("lanes", slots * elements / 8),
        fmt::arg("unroll", held ? turns : 1), fmt::arg("tree", normquant::tree_threads(hidden)),
        fmt::arg("rounds", normquant::column_rounds(hidden)), fmt::arg("slots", slots), fmt::arg("turns", turns),
        fmt::arg("partner", normquant::block32_partner(hidden, threads)),
        fmt::arg("in_registers", normquant::row_in_registers(hidden, threads)),
        fmt::arg("params", sizeof(normquant::Params)), fmt::arg("block_threads", plan.block_threads),
        fmt::arg("resident", plan.form == Form::plain && plan.cluster == 1 && !fallback
                                 ? normquant::resident_blocks(hidden, threads, plan.block_threads, lean, fp32_weight)
                                 : 1),
        fmt::arg("entry", kKernelEntry));
}

}  // namespace nq
