// normquant.hpp: who owns what, what errors carry, which callbacks are called, what spans are refused.
#include "fixture.h"

#include <normquant/normquant.hpp>

#include <array>
#include <cstring>
#include <vector>

using namespace nq::test;

namespace {

struct World : Fixture {
    nqpp::ContextOptions with_fakes() const {
        nqpp::ContextOptions given;
        static_cast<nq_context_options&>(given) = options();
        return given;
    }
    nqpp::Context open() const { return nqpp::Context::create(with_fakes()).value(); }
    std::size_t unloaded() const {
        std::size_t count = 0;
        for (const FakeLibrary& library : cuda.libraries) count += library.unloaded ? 1 : 0;
        return count;
    }
};

nqpp::Tensors tensors_of(std::int64_t rows) {
    nqpp::Tensors tensors;
    static_cast<nq_tensors&>(tensors) = make_tensors(rows);
    return tensors;
}

template <class Cpp, class C>
bool same_bytes(const Cpp& cpp, const C& c) {
    static_assert(sizeof(Cpp) == sizeof(C));
    return std::memcmp(&cpp, &c, sizeof c) == 0;
}

}  // namespace

TEST_CASE("structures begin as those of C") {
    nq_problem problem = NQ_PROBLEM_INIT;
    problem.hidden = 64;
    CHECK(same_bytes(nqpp::Problem(64), problem));
    problem.scale_format = NQ_SCALE_UE8M0;
    problem.block_size = 32;
    CHECK(same_bytes(nqpp::Problem::mxfp4(64), problem));
    nqpp::Tensors tensors;
    const nq_tensors c_tensors = NQ_TENSORS_INIT;
    CHECK(tensors.struct_size == c_tensors.struct_size);
    CHECK(tensors.eps == c_tensors.eps);
    CHECK(nqpp::ContextOptions().struct_size == sizeof(nq_context_options));
    CHECK(nqpp::PrepareOptions().struct_size == sizeof(nq_prepare_options));
}

TEST_CASE("a context moves, and what is destroyed unloads its kernels") {
    World world;
    nqpp::Context first = world.open();
    nq_context* const handle = first.get();
    const nqpp::Kernel kernel = first.prepare(nqpp::Problem(4096), nqpp::PrepareOptions(world.stream)).value();
    REQUIRE(world.cuda.libraries.size() == kKernels);

    nqpp::Context second = std::move(first);
    CHECK_FALSE(first);
    CHECK(second.get() == handle);
    CHECK(kernel.launch(tensors_of(1), world.stream));  // the kernel has stayed where it is
    CHECK(second.prepare(nqpp::Problem(4096), nqpp::PrepareOptions(world.stream)).value().get() == kernel.get());
    CHECK(second.counters().value().memory_hits == 1);
    CHECK(std::string(second.cache_dir()) == world.cache_dir);

    // An empty one says so, and does nothing else.
    CHECK(first.prepare(nqpp::Problem(4096)).error().message == "context is NULL; accepted: a valid pointer");
    CHECK(first.counters().status() == NQ_ERR_INVALID_ARGUMENT);
    CHECK(first.seal().status() == NQ_ERR_INVALID_ARGUMENT);
    CHECK(first.run(nqpp::Problem(4096), tensors_of(1), world.stream).status() == NQ_ERR_INVALID_ARGUMENT);
    CHECK(nqpp::Kernel().launch(tensors_of(1), world.stream).error().message == "kernel is NULL; accepted: a valid pointer");
    CHECK(world.unloaded() == 0);

    // Assignment destroys what was there, and that alone.
    nqpp::Context third = world.open();
    REQUIRE(third.prepare(nqpp::Problem(2048), nqpp::PrepareOptions(world.stream)));
    const std::size_t loaded = world.cuda.libraries.size();
    third = std::move(second);
    CHECK(world.unloaded() == loaded - kKernels);
    CHECK(kernel.launch(tensors_of(1), world.stream));
    third = nqpp::Context();
    CHECK(world.unloaded() == loaded);
}

TEST_CASE("errors carry their text beyond the call") {
    World world;
    nqpp::Context context = world.open();
    const nqpp::Result<nqpp::Kernel> odd = context.prepare(nqpp::Problem(17));
    const nqpp::Result<std::size_t> negative = nqpp::fp4_bytes(nqpp::Problem(64), -1);
    const nqpp::Result<void> unknown = nqpp::supported(nqpp::Problem(64), "sm_1");
    REQUIRE(nqpp::check(nqpp::Problem(64)));  // the library has forgotten them
    CHECK(last_error().empty());
    CHECK(odd.status() == NQ_ERR_INVALID_ARGUMENT);
    CHECK(contains(odd.error().message, "hidden is 17"));
    CHECK(contains(negative.error().message, "rows is -1"));
    CHECK(contains(unknown.error().message, "sm_1"));

    world.nvrtc.fail = true;
    world.nvrtc.log = "line 1: no";
    const nqpp::Result<nqpp::Kernel> broken = context.prepare(nqpp::Problem(64), nqpp::PrepareOptions(world.stream));
    CHECK(broken.status() == NQ_ERR_COMPILE_FAILED);
    CHECK(contains(broken.error().detail, "line 1: no"));

    try {
        (void)broken.value();
        FAIL("value() returned");
    } catch (const nqpp::Exception& exception) {
        CHECK(exception.status() == NQ_ERR_COMPILE_FAILED);
        CHECK(exception.what() == broken.error().message);
        CHECK(exception.error().detail == broken.error().detail);
    }
    CHECK_THROWS_AS(negative.value(), nqpp::Exception);
    CHECK_THROWS_AS(unknown.value(), nqpp::Exception);
    CHECK_THROWS_AS(nqpp::Kernel().launch(tensors_of(1), world.stream).value(), nqpp::Exception);
    CHECK(nqpp::scale_bytes(nqpp::Problem(64), 3).value() == 12);
    CHECK(*nqpp::scale_offset(nqpp::Problem(64), 2, 3) == 11);
    CHECK(nqpp::required_alignment(nqpp::Problem(64), "x").value() == 16);
    CHECK(nqpp::plan(nqpp::Problem(4096), "sm_90", nqpp::Variant::throughput)->load_bytes == 16);
}

TEST_CASE("callbacks: those with state where they lie, the others by value") {
    World world;
    std::vector<std::string> compiled;
    const auto on_compile = [&](const nq_compile_event& event) { compiled.emplace_back(event.arch); };
    static std::vector<nqpp::LogLevel> levels;
    levels.clear();
    const auto on_log = [](nqpp::LogLevel level, const char*) { levels.push_back(level); };
    const auto options = world.with_fakes().with(nqpp::LogLevel::debug).on_compile(on_compile).on_log(on_log);
    CHECK(options.compile_payload == &on_compile);
    nqpp::Context context = nqpp::Context::create(options).value();
    REQUIRE(context.prepare(nqpp::Problem(4096), nqpp::PrepareOptions(world.stream)));
    CHECK(compiled == std::vector<std::string>(kKernels, "sm_90"));
    REQUIRE_FALSE(levels.empty());
    CHECK(levels.front() >= nqpp::LogLevel::debug);
    CHECK(levels.front() <= nqpp::LogLevel::error);

    REQUIRE(context.seal());
    const auto late = context.prepare(nqpp::Problem(2048), nqpp::PrepareOptions(world.stream));
    CHECK(late.status() == NQ_ERR_NOT_PREPARED);
    CHECK(compiled.size() == kKernels);
    nqpp::Context without_jit = nqpp::Context::create(world.with_fakes().with(nqpp::Jit::off)).value();
    CHECK(without_jit.prepare(nqpp::Problem(2048), nqpp::PrepareOptions(world.stream)).status() == NQ_ERR_NOT_PREPARED);
}

TEST_CASE("precompile takes arrays of any kind, and stops when told to") {
    World world;
    nqpp::Context context = world.open();
    std::vector<nqpp::Problem> problems = {nqpp::Problem(4096), nqpp::Problem(2048).with(nqpp::ScaleLayout::swizzled)};
    const std::array<const char*, 2> archs = {"sm_90", "sm_80"};
    std::uint64_t total = 0, done = 0;
    CHECK(context.precompile(std::span(problems), std::span(archs), [&](const nq_precompile_event& event) {
        total = event.total;
        ++done;
    }));
    CHECK(total > 4);
    CHECK(done == total);
    CHECK(context.counters()->compiles == total);

    done = 0;
    const char* const one_arch[] = {"sm_86"};
    const auto stop = [&](const nq_precompile_event&) {
        ++done;
        return nqpp::Next::stop;
    };
    CHECK(context.precompile(problems, one_arch, stop, 1));
    CHECK(done == 1);
    done = 0;
    const auto go_on = [&](const nq_precompile_event&) { return ++done, nqpp::Next::go_on; };
    CHECK(context.precompile(problems, one_arch, go_on, 1));
    CHECK(done > 1);

    problems[1].hidden = 17;
    const nqpp::Result<void> bad = context.precompile(problems, archs, 1);
    CHECK(contains(bad.error().message, "problems[1]"));
}

TEST_CASE("the reference on spans gives the bytes of the C call, and refuses short ones by name") {
    const auto problem = nqpp::Problem(64).with(nqpp::Op::add_rmsnorm).with(nqpp::ScaleLayout::both).with_y_out();
    constexpr std::size_t kRows = 3;
    const std::vector<std::uint16_t> x(kRows * 64, 0x3fc0), weight(64, 0x3f80);
    struct Outputs {
        std::vector<std::uint16_t> residual = std::vector<std::uint16_t>(kRows * 64, 0x3f80), y = std::vector<std::uint16_t>(kRows * 64);
        std::vector<std::byte> fp4 = std::vector<std::byte>(kRows * 32);
        std::array<std::uint8_t, 512> scales = {};
        std::array<std::uint8_t, kRows * 4> linear = {};
        std::vector<float> rstd = std::vector<float>(kRows);
        bool operator==(const Outputs&) const = default;
    } spans, pointers;
    nqpp::HostTensors host = {.rows = kRows, .x = x, .weight = weight, .global_scale = 2.0f, .fp4 = spans.fp4, .scales = spans.scales,
                              .scales_linear = spans.linear, .residual = spans.residual, .y_out = spans.y, .rstd = spans.rstd};

    const auto refused = [&](const std::string& message) {
        const nqpp::Result<void> result = nqpp::reference(problem, host);
        CHECK(result.status() == NQ_ERR_INVALID_ARGUMENT);
        return result.error().message == message;
    };
    const auto with = [&](auto field, auto value, const std::string& message) {
        const auto before = host.*field;
        host.*field = value;
        const bool as_expected = refused(message);
        host.*field = before;
        return as_expected;
    };
    const std::span<const std::uint16_t> whole(x);
    CHECK(with(&nqpp::HostTensors::x, whole.first(191), "x has 382 bytes; accepted: 384 or more"));
    CHECK(with(&nqpp::HostTensors::x, nqpp::HostInput(), "x has 0 bytes; accepted: 384 or more"));
    CHECK(with(&nqpp::HostTensors::weight, whole.first(63), "weight has 126 bytes; accepted: 128 or more"));
    CHECK(with(&nqpp::HostTensors::fp4, std::span(spans.fp4).first(95), "fp4 has 95 bytes; accepted: 96 or more"));
    CHECK(with(&nqpp::HostTensors::scales, std::span(spans.scales).first(12), "scales has 12 bytes; accepted: 512 or more"));
    CHECK(with(&nqpp::HostTensors::scales_linear, std::span(spans.linear).first(11), "scales_linear has 11 bytes; accepted: 12 or more"));
    CHECK(with(&nqpp::HostTensors::residual, std::span(spans.y).first(1), "residual has 2 bytes; accepted: 384 or more"));
    CHECK(with(&nqpp::HostTensors::residual_out, std::span(spans.y).first(2), "residual_out has 4 bytes; accepted: 384 or more"));
    CHECK(with(&nqpp::HostTensors::y_out, std::span(spans.y).first(3), "y_out has 6 bytes; accepted: 384 or more"));
    CHECK(with(&nqpp::HostTensors::rstd, std::span(spans.rstd).first(2), "rstd has 8 bytes; accepted: 12 or more"));
    CHECK(with(&nqpp::HostTensors::rows, std::int64_t{-1}, "rows is -1; accepted: 0 to 2147483647"));
    // What is needed and absent is refused by the library.
    const auto residual = host.residual;
    host.residual = {};
    CHECK(contains(nqpp::reference(problem, host).error().message, "residual"));
    host.residual = residual;
    CHECK(spans == Outputs());  // nothing of it has written

    CHECK(nqpp::reference(problem, host, 1));
    const float global_scale = 2.0f;
    nqpp::Tensors tensors;
    tensors.rows = kRows;
    tensors.x = x.data();
    tensors.weight = weight.data();
    tensors.global_scale = &global_scale;
    tensors.fp4 = pointers.fp4.data();
    tensors.scales = pointers.scales.data();
    tensors.scales_linear = pointers.linear.data();
    tensors.residual = pointers.residual.data();
    tensors.y_out = pointers.y.data();
    tensors.rstd = pointers.rstd.data();
    CHECK(nqpp::reference(problem, tensors));
    CHECK(spans == pointers);
    CHECK_FALSE(spans == Outputs());

    CHECK(nqpp::reference(problem, nqpp::HostTensors{}));  // no rows, no arrays
}
