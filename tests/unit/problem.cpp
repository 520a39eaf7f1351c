#include "problem/problem.h"

#include "problem/option_values.h"
#include "problem/struct_size.h"

#include "support/catch.h"

#include <normquant/scale_layout.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

using namespace nq;

namespace {

nq_problem valid() {
    nq_problem problem = NQ_PROBLEM_INIT;
    problem.hidden = 4096;
    return problem;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the initializer needs only hidden") {
    const nq_problem problem = valid();
    const Result<Problem> checked = problem_from_c(&problem);
    REQUIRE(checked.ok());
    CHECK(*checked == Problem{.hidden = 4096});
}

TEST_CASE("a NULL problem is refused") {
    const Result<Problem> checked = problem_from_c(nullptr);
    REQUIRE_FALSE(checked.ok());
    CHECK(checked.error().status == NQ_ERR_INVALID_ARGUMENT);
    CHECK(contains(checked.error().message, "problem is NULL"));
}

TEST_CASE("every field is checked, and named with its value and what is accepted") {
    struct Case {
        std::uint32_t nq_problem::*field;
        std::vector<std::uint32_t> bad;
        std::string name;
        std::string accepted;
    };
    const std::vector<Case> cases = {
        {&nq_problem::op, {2, 3, 0xffffffff}, "op", "NQ_OP_RMSNORM (0), NQ_OP_ADD_RMSNORM (1)"},
        {&nq_problem::hidden,
         {0, 1, 8, 15, 17, 24, 4095, 4097, 131073, 131088, 262144, 0xfffffff0, 0xffffffff},
         "hidden",
         "multiples of block_size (16) from 16 to 131072"},
        {&nq_problem::dtype, {2, 3, 0xffffffff}, "dtype", "NQ_FP16 (0), NQ_BF16 (1)"},
        {&nq_problem::weight_dtype, {0, 3, 0xffffffff}, "weight_dtype", "dtype (1), NQ_FP32 (2)"},
        {&nq_problem::block_size, {0, 1, 8, 17, 64, 0xffffffff}, "block_size", "16, 32"},
        {&nq_problem::scale_format, {2, 0xffffffff}, "scale_format", "NQ_SCALE_E4M3 (0), NQ_SCALE_UE8M0 (1)"},
        {&nq_problem::scale_layout, {3, 0xffffffff}, "scale_layout", "NQ_LAYOUT_LINEAR (0), NQ_LAYOUT_SWIZZLED (1), NQ_LAYOUT_BOTH (2)"},
    };
    for (const Case& c : cases) {
        for (const std::uint32_t value : c.bad) {
            CAPTURE(c.name, value);
            nq_problem problem = valid();
            problem.*c.field = value;
            const Result<Problem> checked = problem_from_c(&problem);
            REQUIRE_FALSE(checked.ok());
            CHECK(checked.error().status == NQ_ERR_INVALID_ARGUMENT);
            CHECK(checked.error().message ==
                  "nq_problem." + c.name + " is " + std::to_string(value) + "; accepted: " + c.accepted);
        }
    }
}

TEST_CASE("unknown flags are refused, known ones kept") {
    for (const std::uint32_t flags : {0x20u, 0x21u, 0x80000000u, 0xffffffffu}) {
        CAPTURE(flags);
        nq_problem problem = valid();
        problem.flags = flags;
        const Result<Problem> checked = problem_from_c(&problem);
        REQUIRE_FALSE(checked.ok());
        CHECK(checked.error().status == NQ_ERR_INVALID_ARGUMENT);
        CHECK(contains(checked.error().message, "nq_problem.flags is 0x"));
        CHECK(contains(checked.error().message, "NQ_PROBLEM_WEIGHT_BIAS_ONE (0x1), NQ_PROBLEM_Y_OUT (0x2)"));
    }
    nq_problem problem = valid();
    problem.flags = NQ_PROBLEM_Y_OUT;
    const Result<Problem> checked = problem_from_c(&problem);
    REQUIRE(checked.ok());
    CHECK(checked->y_out);
    CHECK_FALSE(checked->weight_bias_one);
}

TEST_CASE("hidden goes from one block to 131072 in whole blocks") {
    const std::uint32_t block = GENERATE(16u, 32u);
    nq_problem problem = valid();
    problem.block_size = block;
    for (const std::uint32_t hidden : {block, 2 * block, 96u, 2880u, 131072u - block, 131072u}) {
        CAPTURE(block, hidden);
        problem.hidden = hidden;
        CHECK(problem_from_c(&problem).ok());
    }
    problem.hidden = 80;  // a multiple of 16 only
    CHECK(problem_from_c(&problem).ok() == (block == 16));
    problem.hidden = 16;
    CHECK(problem_from_c(&problem).ok() == (block == 16));
}

TEST_CASE("weights have x's type or fp32") {
    for (std::uint32_t dtype : {NQ_FP16, NQ_BF16}) {
        for (std::uint32_t weight : {NQ_FP16, NQ_BF16, NQ_FP32}) {
            CAPTURE(dtype, weight);
            nq_problem problem = valid();
            problem.dtype = dtype;
            problem.weight_dtype = weight;
            CHECK(problem_from_c(&problem).ok() == (weight == dtype || weight == NQ_FP32));
        }
    }
}

TEST_CASE("struct_size: older is refused, newer accepted while its unknown fields are zero") {
    struct Newer {
        nq_problem problem;
        unsigned char tail[24];
    };
    Newer newer{valid(), {}};

    for (const std::uint32_t size : {0u, 4u, 35u, kMaxStructSize + 1, 0xffffffffu}) {
        CAPTURE(size);
        newer.problem.struct_size = size;
        const Result<Problem> checked = problem_from_c(&newer.problem);
        REQUIRE_FALSE(checked.ok());
        CHECK(checked.error().status == NQ_ERR_STRUCT_SIZE);
        CHECK(contains(checked.error().message, "nq_problem.struct_size is " + std::to_string(size)));
        CHECK(contains(checked.error().message, "accepted: 36"));
    }
    newer.problem.struct_size = sizeof(Newer);
    CHECK(problem_from_c(&newer.problem).ok());
    for (std::size_t i = 0; i < sizeof(newer.tail); ++i) {
        CAPTURE(i);
        newer.tail[i] = 0x80;
        const Result<Problem> checked = problem_from_c(&newer.problem);
        REQUIRE_FALSE(checked.ok());
        CHECK(checked.error().status == NQ_ERR_STRUCT_SIZE);
        CHECK(contains(checked.error().message, "byte " + std::to_string(36 + i) + " is 0x80"));
        newer.tail[i] = 0;
    }
    newer.tail[23] = 1;  // outside of a smaller struct_size
    newer.problem.struct_size = sizeof(Newer) - 1;
    CHECK(problem_from_c(&newer.problem).ok());
}

TEST_CASE("every valid problem survives the way to C and back, with a canonical text of its own") {
    std::vector<std::string> texts;
    for (std::uint32_t code = 0; code < 2048; ++code) {
        nq_problem c = valid();
        c.op = code & 1;
        c.dtype = code >> 1 & 1;
        c.weight_dtype = (code >> 2 & 1) != 0 ? std::uint32_t{NQ_FP32} : c.dtype;
        c.block_size = (code >> 3 & 1) != 0 ? 32 : 16;
        c.scale_format = code >> 4 & 1;
        c.scale_layout = code >> 5 & 1;
        c.flags = code >> 6 & 31;
        const Result<Problem> problem = problem_from_c(&c);
        REQUIRE(problem.ok());
        const nq_problem back = problem_to_c(*problem);
        CHECK(std::memcmp(&back, &c, sizeof(c)) == 0);
        texts.push_back(canonical_text(*problem));
    }
    std::sort(texts.begin(), texts.end());
    CHECK(std::adjacent_find(texts.begin(), texts.end()) == texts.end());
}

// These texts are in cache keys: a change makes every stored kernel unreachable.
TEST_CASE("the canonical text is fixed") {
    CHECK(canonical_text(Problem{.hidden = 7168}) ==
          "op=rmsnorm hidden=7168 dtype=bf16 weight=bf16 block=16 scale=e4m3 layout=linear bias=0 y_out=0");
    CHECK(canonical_text(Problem{.op = Op::add_rmsnorm,
                                 .hidden = 64,
                                 .dtype = DType::fp16,
                                 .weight_dtype = DType::fp32,
                                 .block_size = 32,
                                 .scale_format = ScaleFormat::ue8m0,
                                 .scale_layout = ScaleLayout::swizzled,
                                 .weight_bias_one = true,
                                 .y_out = true}) ==
          "op=add_rmsnorm hidden=64 dtype=fp16 weight=fp32 block=32 scale=ue8m0 layout=swizzled bias=1 y_out=1");
}

TEST_CASE("buffer sizes: codes, and scales padded to whole tiles of 128 rows by 4 blocks") {
    struct Row {
        std::int64_t rows;
        std::uint32_t hidden, block;
        std::size_t linear, swizzled;
    };
    const std::vector<Row> table = {
        {0, 64, 16, 0, 0},
        {1, 16, 16, 1, 512},
        {1, 64, 16, 4, 512},
        {1, 80, 16, 5, 1024},
        {7, 96, 16, 42, 1024},
        {127, 112, 16, 889, 1024},
        {128, 64, 16, 512, 512},
        {129, 64, 16, 516, 1024},
        {255, 128, 16, 2040, 2048},
        {256, 128, 16, 2048, 2048},
        {257, 128, 16, 2056, 3072},
        {1, 1840, 16, 115, 14848},
        {1, 1856, 16, 116, 14848},
        {1, 2896, 16, 181, 23552},
        {128, 2688, 16, 21504, 21504},
        {1, 32, 32, 1, 512},
        {129, 160, 32, 645, 2048},
        {16384, 7168, 16, 7340032, 7340032},
        {16385, 2880, 32, 1474650, 1519104},
        {0x7fffffff, 131072, 16, 17592186036224u, 17592186044416u},  // beyond 32 bits
    };
    for (const Row& row : table) {
        CAPTURE(row.rows, row.hidden, row.block);
        Problem problem{.hidden = row.hidden, .block_size = row.block};
        CHECK(fp4_bytes(problem, row.rows) == static_cast<std::size_t>(row.rows) * row.hidden / 2);
        CHECK(scale_bytes(problem, row.rows) == row.linear);
        problem.scale_layout = ScaleLayout::swizzled;
        CHECK(scale_bytes(problem, row.rows) == row.swizzled);
    }
}

TEST_CASE("scale offsets: the positions that the public header's formula gives") {
    using normquant::scale_offset;
    CHECK(scale_offset(0, 0, 8, true) == 0);
    CHECK(scale_offset(33, 1, 8, true) == 21);     // 1*16 + 1*4 + 1
    CHECK(scale_offset(128, 4, 8, true) == 1536);  // second tile row, second tile
    CHECK(scale_offset(127, 3, 4, true) == 511);   // last byte of a tile
    CHECK(scale_offset(3, 2, 5, false) == 17);
    for (const std::uint64_t row : {0ull, 1ull, 31ull, 32ull, 95ull, 127ull, 128ull, 1000ull, 0x7ffffffeull}) {
        for (const std::uint32_t blocks : {1u, 4u, 5u, 181u, 8192u}) {
            for (const std::uint32_t block : {0u, blocks / 2, blocks - 1}) {
                CAPTURE(row, blocks, block);
                const std::uint64_t tiles = (blocks + 3) / 4;
                CHECK(scale_offset(row, block, blocks, true) ==
                      (row / 128 * tiles + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4);
                CHECK(scale_offset(row, block, blocks, false) == row * blocks + block);
            }
        }
    }
}

TEST_CASE("the swizzled layout gives every scale and padding slot a byte of its own") {
    const std::uint32_t blocks = GENERATE(4u, 5u, 7u);
    const std::uint32_t padded = (blocks + 3) / 4 * 4;
    std::vector<int> hits(normquant::scale_buffer_bytes(129, blocks, true));
    for (std::uint32_t row = 0; row < 256; ++row) {
        for (std::uint32_t block = 0; block < padded; ++block) {
            ++hits.at(normquant::scale_offset(row, block, blocks, true));
        }
    }
    CHECK(std::count(hits.begin(), hits.end(), 1) == static_cast<std::ptrdiff_t>(hits.size()));
}

TEST_CASE("a problem in the words of the command line") {
    const Arch sm_90{9, 0, 0};
    CHECK(warmup_command({.hidden = 4096}, sm_90) == "normquant warmup --hidden 4096 --arch sm_90 --format nvfp4 --layout linear");
    CHECK(manifest_text({.hidden = 4096}) ==
          R"({"hidden":4096,"op":"rmsnorm","dtype":"bf16","weight_dtype":"same","weight_bias":0,"format":"nvfp4","layout":"linear",)"
          R"("y_out":"off","overlap":"off","device_rows":"off","batches":"off"})");
    const Problem other{.op = Op::add_rmsnorm,
                        .hidden = 64,
                        .dtype = DType::fp16,
                        .weight_dtype = DType::fp32,
                        .block_size = 16,
                        .scale_format = ScaleFormat::ue8m0,
                        .scale_layout = ScaleLayout::both,
                        .weight_bias_one = true,
                        .y_out = true,
                        .overlap = true,
                        .device_rows = true,
                        .batches = true};
    CHECK(warmup_command(other, {10, 0, 'f'}) ==
          "normquant warmup --hidden 64 --arch sm_100f --op add_rmsnorm --dtype fp16 --weight-dtype fp32 --weight-bias 1 "
          "--format ue8m0/16 --layout both --y-out on --overlap on --device-rows on --batches on");
    CHECK(manifest_text(other) ==
          R"({"hidden":64,"op":"add_rmsnorm","dtype":"fp16","weight_dtype":"fp32","weight_bias":1,"format":"ue8m0/16","layout":"both",)"
          R"("y_out":"on","overlap":"on","device_rows":"on","batches":"on"})");
}
