// Who compiles, how often, and who is told: threads, processes, seals, callbacks, layers.
#include "cache/bundle.h"
#include "cache/store.h"
#include "fixture.h"
#include "support/foreign_bundle.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

using namespace nq::test;
namespace fs = std::filesystem;

namespace {

struct Compiles {
    std::mutex mutex;
    std::vector<std::string> keys, problems, archs;
    std::vector<nq_status> statuses;
    static void record(const nq_compile_event* event, void* self) {
        auto& all = *static_cast<Compiles*>(self);
        const std::lock_guard lock(all.mutex);
        all.keys.emplace_back(event->key);
        all.problems.emplace_back(event->problem);
        all.archs.emplace_back(event->arch);
        all.statuses.push_back(event->status);
    }
};

struct Warnings {
    std::mutex mutex;
    std::vector<std::string> texts;
    static void record(std::uint32_t level, const char* text, void* self) {
        auto& all = *static_cast<Warnings*>(self);
        const std::lock_guard lock(all.mutex);
        if (level >= NQ_LOG_WARN) all.texts.emplace_back(text);
    }
    // Of the default level.
    nq_context_options into(nq_context_options options) {
        options.log_level = NQ_LOG_DEFAULT;
        options.log_callback = &Warnings::record;
        options.log_payload = this;
        return options;
    }
};

nq_status prepare_on(nq_context* context, std::uint32_t hidden, CUstream stream) {
    const nq_problem problem = make_problem(hidden);
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = stream;
    nq_kernel* kernel = nullptr;
    return nq_prepare(context, &problem, &options, &kernel);
}

void at_once(int threads, const std::function<void(int)>& body) {
    std::vector<std::thread> all;
    for (int i = 0; i < threads; ++i) all.emplace_back(body, i);
    for (std::thread& thread : all) thread.join();
}

bool child_succeeds(pid_t child) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return status == 0;
}

std::size_t entry_count(const std::string& root) {
    std::size_t count = 0;
    for (const auto& item : fs::recursive_directory_iterator(root)) count += item.path().extension() == ".nqc";
    return count;
}

// As where nothing may be compiled, or could be. `bundle` outlives them.
nq_context_options serving_options(const Fixture& world, const std::string& bundle) {
    nq_context_options options = world.options();
    options.jit = NQ_JIT_OFF;
    options.cache_dir = "";
    options.bundles = bundle.c_str();
    options.nvrtc = "/nowhere/libnvrtc.so";
    return options;
}

// Everything in the root, as one file.
void export_bundle(const std::string& root, const std::string& path) {
    nq::Logger log(nullptr, nullptr, NQ_LOG_OFF);
    nq::Counters counters;
    const nq::Store store(root, {}, nq::system_files(), log, counters);
    std::vector<nq::Entry> entries;
    std::vector<nq::BundleItem> items;
    store.visit([&](nq::StoredEntry stored) {
        items.push_back({stored.entry->key, stored.entry->compiler, stored.arch});
        entries.push_back(*stored.entry);
    });
    REQUIRE(nq::write_bundle(nq::system_files(), path, items, [&](const nq::BundleItem& item) -> nq::Result<nq::Entry> {
        return *std::ranges::find_if(
            entries, [&](const nq::Entry& e) { return e.key == item.key && e.compiler == item.compiler; });
    }));
}

}  // namespace

TEST_CASE("24 threads, 200 kernels in mixed order: each compiled once, several at a time, within the bound") {
    Fixture world;
    world.nvrtc.milliseconds = 2;
    nq_context_options options = world.options();
    options.compile_threads = 3;
    Compiles compiles;
    options.compile_callback = &Compiles::record;
    options.compile_payload = &compiles;
    const ContextPtr context = world.create(options);
    std::atomic<int> failed{0};
    at_once(24, [&](int thread) {
        for (int i = 0; i < 100; ++i) {
            // Every thread its own order.
            const int which = (i * (2 * thread + 1) + 7 * thread) % 100;
            if (prepare_on(context.get(), 512 + 16 * static_cast<unsigned>(which), world.stream) != NQ_OK) ++failed;
        }
    });
    CHECK(failed == 0);
    CHECK(world.nvrtc.compiles == 100 * kKernels);  // the variants of each
    CHECK(world.nvrtc.most_running > 1);
    CHECK(world.nvrtc.most_running <= 3);
    CHECK(world.nvrtc.live_programs == 0);
    CHECK(entry_count(world.cache_dir) == 100 * kKernels);
    CHECK(std::set<std::string>(compiles.keys.begin(), compiles.keys.end()).size() == 100 * kKernels);
    const nq_counters counters = counters_of(context.get());
    CHECK(counters.compiles == 100 * kKernels);
    CHECK(counters.misses == 100 * kKernels);
    CHECK(counters.stored_entries == 100 * kKernels);
    CHECK(counters.memory_hits <= 2300);  // the first of each was none
    CHECK(counters.disk_hits == 0);
    CHECK(counters.lock_timeouts == 0);

    // From here on every one is, whoever asks.
    at_once(24, [&](int) {
        for (unsigned i = 0; i < 100; ++i) failed += prepare_on(context.get(), 512 + 16 * i, world.stream) != NQ_OK;
    });
    CHECK(failed == 0);
    const nq_counters later = counters_of(context.get());
    CHECK(later.memory_hits - counters.memory_hits == 2400);
    CHECK(later.compiles + later.misses + later.disk_hits + later.layer_hits == 200 * kKernels);
    CHECK(later.loaded_bytes == counters.loaded_bytes);
}

TEST_CASE("64 processes with 24 threads each want one cold kernel: each variant is compiled once") {
    Fixture world;
    world.nvrtc.milliseconds = 100;
    world.nvrtc.count_file = world.directory / "count";
    std::vector<pid_t> children;
    for (int i = 0; i < 64; ++i) {
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            nq_context_options options = world.options();
            options.lock_timeout_ms = 600'000;
            nq_context* context = nullptr;
            std::atomic<int> failed{nq_context_create(&options, &context) != NQ_OK};
            at_once(24, [&](int) { failed += prepare_on(context, 4096, world.stream) != NQ_OK; });
            nq_counters counters = NQ_COUNTERS_INIT;
            nq_context_counters(context, &counters);
            ::_exit(failed != 0 || counters.compiles + counters.disk_hits != kKernels || counters.lock_timeouts != 0);
        }
        children.push_back(child);
    }
    int succeeded = 0;
    for (const pid_t child : children) succeeded += child_succeeds(child);
    CHECK(succeeded == 64);
    CHECK(fs::file_size(world.nvrtc.count_file) == kKernels);
    CHECK(entry_count(world.cache_dir) == kKernels);
}

#if !defined(__SANITIZE_THREAD__)  // which starts no threads in the child of a process that had some
TEST_CASE("a child that is forked while its parent compiles can compile, too") {
    Fixture world;
    world.nvrtc.milliseconds = 300;
    nq_context_options options = world.options();
    options.compile_threads = 2;
    const ContextPtr context = world.create(options);
    const nq_problem problem = make_problem();
    const char* const archs[] = {"sm_90"};
    std::thread parent([&] { nq_precompile(context.get(), &problem, 1, archs, 1, 2, nullptr, nullptr); });
    const auto both_run = [&] {
        const std::lock_guard lock(world.nvrtc.mutex);
        return world.nvrtc.running == 2;
    };
    // Both asleep, so that the child inherits no lock of the fake's.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!both_run() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!both_run()) {
        parent.join();
        FAIL("two compiles never ran at the same time");
    }
    const pid_t child = ::fork();
    if (child == 0) {
        // The same kernels, whose flights and locks are the parent's, and others.
        const nq_problem other = make_problem(7168);
        const char* const both[] = {"sm_90", "sm_80"};
        const bool good = nq_precompile(context.get(), &problem, 1, both, 2, 2, nullptr, nullptr) == NQ_OK &&
                          nq_precompile(context.get(), &other, 1, both, 2, 2, nullptr, nullptr) == NQ_OK;
        nq_context_destroy(context.get());
        ::_exit(good ? 0 : 1);
    }
    CHECK(child_succeeds(child));
    parent.join();
    CHECK(counters_of(context.get()).compiles == kKernels);
}
#endif

TEST_CASE("a sealed context compiles nothing more") {
    Fixture world;
    Compiles compiles;
    nq_context_options options = world.options();
    options.compile_callback = &Compiles::record;
    options.compile_payload = &compiles;
    const ContextPtr warm = world.create();
    REQUIRE(prepare_on(warm.get(), 2048, nullptr) == NQ_OK);
    const ContextPtr context = world.create(options);
    REQUIRE(prepare_on(context.get(), 4096, nullptr) == NQ_OK);
    REQUIRE(compiles.keys.size() == kKernels);
    CHECK(nq_context_seal(context.get()) == NQ_OK);
    CHECK(nq_context_seal(context.get()) == NQ_OK);

    CHECK(prepare_on(context.get(), 4096, nullptr) == NQ_OK);  // in memory
    CHECK(prepare_on(context.get(), 2048, nullptr) == NQ_OK);  // on disk
    CHECK(prepare_on(context.get(), 7168, nullptr) == NQ_ERR_NOT_PREPARED);
    CHECK(contains(last_error(), "sealed"));
    CHECK(contains(last_error(), "hidden=7168"));
    const nq_problem problem = make_problem(7168);
    const nq_tensors tensors = make_tensors(1);
    CHECK(nq_run(context.get(), &problem, &tensors, world.stream) == NQ_ERR_NOT_PREPARED);
    const char* const archs[] = {"sm_80"};
    CHECK(nq_precompile(context.get(), &problem, 1, archs, 1, 0, nullptr, nullptr) == NQ_ERR_NOT_PREPARED);
    CHECK(compiles.keys.size() == kKernels);
    CHECK(world.nvrtc.compiles == 2 * kKernels);
    // Others are free.
    CHECK(prepare_on(warm.get(), 7168, nullptr) == NQ_OK);
    CHECK(nq_context_seal(nullptr) == NQ_ERR_INVALID_ARGUMENT);
}

TEST_CASE("a seal stops a warm-up that has begun") {
    Fixture world;
    const ContextPtr context = world.create();
    const nq_problem problem = make_problem();
    const char* const archs[] = {"sm_90"};
    std::vector<nq_status> statuses;
    const auto seal = [&](const nq_precompile_event& event) {
        statuses.push_back(event.status);
        REQUIRE(nq_context_seal(context.get()) == NQ_OK);
    };
    const auto call = [](const nq_precompile_event* event, void* body) {
        (*static_cast<decltype(seal)*>(body))(*event);
        return 0;
    };
    auto body = seal;
    CHECK(nq_precompile(context.get(), &problem, 1, archs, 1, 1, call, &body) == NQ_ERR_NOT_PREPARED);
    CHECK(contains(last_error(), "sealed"));
    CHECK(contains(last_error(), "hidden=4096"));
    CHECK(statuses == std::vector<nq_status>{NQ_OK, NQ_ERR_NOT_PREPARED, NQ_ERR_NOT_PREPARED});
    CHECK(world.nvrtc.compiles == 1);
}

TEST_CASE("what cannot be stored is compiled once a process, whatever devices want it") {
    Fixture world;
    nq_context_options options = world.options();
    SECTION("no root") { options.cache_dir = ""; }
    SECTION("a read-only root") { options.cache_flags = NQ_CACHE_READONLY; }
    world.cuda.devices = {{9, 0, 132}, {9, 0, 132}};
    const ContextPtr context = world.create(options);
    REQUIRE(prepare_on(context.get(), 4096, world.stream) == NQ_OK);
    REQUIRE(prepare_on(context.get(), 4096, world.cuda.add_stream(world.cuda.add_context(1))) == NQ_OK);
    CHECK(world.cuda.libraries.size() == 2 * kKernels);
    CHECK(world.nvrtc.compiles == kKernels);
}

TEST_CASE("a variable that NVRTC reads itself makes another compiler, whenever it is set") {
    Fixture world;
    const ContextPtr context = world.create();
    const auto precompile = [&] {
        const nq_problem problem = make_problem();
        const char* const archs[] = {"sm_90"};
        return nq_precompile(context.get(), &problem, 1, archs, 1, 1, nullptr, nullptr);
    };
    REQUIRE(precompile() == NQ_OK);
    ::setenv("NVRTC_APPEND_FLAGS", "-lineinfo", 1);
    const nq_status status = precompile();
    ::unsetenv("NVRTC_APPEND_FLAGS");
    REQUIRE(status == NQ_OK);
    CHECK(world.nvrtc.compiles == 2 * kKernels);
    REQUIRE(precompile() == NQ_OK);
    CHECK(world.nvrtc.compiles == 2 * kKernels);
}

TEST_CASE("every compile is reported, and nothing else") {
    Fixture world;
    Compiles compiles;
    nq_context_options options = world.options();
    options.compile_callback = &Compiles::record;
    options.compile_payload = &compiles;
    const ContextPtr context = world.create(options);
    REQUIRE(prepare_on(context.get(), 4096, nullptr) == NQ_OK);
    REQUIRE(prepare_on(context.get(), 4096, nullptr) == NQ_OK);
    REQUIRE(compiles.keys.size() == kKernels);
    CHECK(compiles.keys[0] != compiles.keys[1]);
    for (std::size_t i = 0; i < 2; ++i) {
        CHECK(compiles.statuses[i] == NQ_OK);
        CHECK(contains(compiles.problems[i], "hidden=4096"));
        CHECK(compiles.archs[i] == "sm_90");
        // The name of the entry.
        CHECK(fs::exists(world.cache_dir + "/v1/sm_90/" + compiles.keys[i].substr(0, 2)));
    }
    const ContextPtr second = world.create(options);
    REQUIRE(prepare_on(second.get(), 4096, nullptr) == NQ_OK);
    CHECK(compiles.keys.size() == kKernels);
    world.nvrtc.fail = true;
    CHECK(prepare_on(second.get(), 7168, nullptr) == NQ_ERR_COMPILE_FAILED);
    REQUIRE(compiles.keys.size() == 2 * kKernels);
    CHECK(compiles.statuses[3] == NQ_ERR_COMPILE_FAILED);
    CHECK(prepare_on(second.get(), 7168, nullptr) == NQ_ERR_COMPILE_FAILED);
    CHECK(compiles.keys.size() == 2 * kKernels);  // remembered
}

TEST_CASE("a bundle serves without NVRTC and without a root; what it lacks is named with its key") {
    Fixture world;
    const std::string bundle = world.directory / "kernels.nqb";
    std::vector<std::string> keys;
    {
        Compiles compiles;
        nq_context_options options = world.options();
        options.compile_callback = &Compiles::record;
        options.compile_payload = &compiles;
        const ContextPtr builder = world.create(options);
        const nq_problem problem = make_problem(4096);
        const char* const archs[] = {"sm_90", "sm_120f"};
        REQUIRE(nq_precompile(builder.get(), &problem, 1, archs, 2, 0, nullptr, nullptr) == NQ_OK);
        export_bundle(world.cache_dir, bundle);
        REQUIRE(prepare_on(builder.get(), 7168, nullptr) == NQ_OK);
        keys.assign(compiles.keys.end() - 2, compiles.keys.end());
    }
    nq_context_options options = serving_options(world, bundle);
    const ContextPtr served = world.create(options);
    const int compiled = world.nvrtc.compiles;
    CHECK(prepare_on(served.get(), 4096, world.stream) == NQ_OK);
    CHECK(prepare_on(served.get(), 4096, world.cuda.add_stream(world.cuda.add_context(1))) == NQ_OK);
    const nq_counters counters = counters_of(served.get());
    CHECK(counters.layer_hits >= 4);
    CHECK(counters.disk_hits + counters.compiles + counters.misses == 0);
    CHECK(prepare_on(served.get(), 7168, world.stream) == NQ_ERR_NOT_PREPARED);
    for (const std::string& key : keys) CHECK(contains(last_error(), key));
    CHECK(contains(last_error(), bundle));
    CHECK(counters_of(served.get()).misses == kKernels);
    CHECK(world.nvrtc.compiles == compiled);

    SECTION("what the driver refuses of it is compiled here, by another NVRTC") {
        options = world.options();
        options.bundles = bundle.c_str();
        options.nvrtc = NORMQUANT_FAKE_NVRTC_12_9;
        world.cuda.refused_images = 1;
        const ContextPtr context = world.create(options);
        CHECK(prepare_on(context.get(), 4096, world.stream) == NQ_OK);
        CHECK(counters_of(context.get()).compiles == kKernels);
        CHECK(counters_of(context.get()).stored_entries == kKernels);
        // And that is what the next one takes from the root.
        world.cuda.refused_images = 1;
        const ContextPtr next = world.create(options);
        CHECK(prepare_on(next.get(), 4096, world.stream) == NQ_OK);
        CHECK(counters_of(next.get()).compiles == 0);
        CHECK(counters_of(next.get()).disk_hits == kKernels);
        // Where nothing may be compiled, the driver's word is final.
        world.cuda.refused_images = 1;
        options.jit = NQ_JIT_OFF;
        const ContextPtr banned = world.create(options);
        CHECK(prepare_on(banned.get(), 4096, world.stream) == NQ_ERR_DRIVER);
        CHECK(contains(last_error(), "cuLibraryLoadData"));
    }
    SECTION("what the driver refuses of this very NVRTC is not compiled again") {
        options = world.options();
        options.bundles = bundle.c_str();
        world.cuda.refused_images = 1;
        const ContextPtr context = world.create(options);
        CHECK(prepare_on(context.get(), 4096, world.stream) == NQ_ERR_DRIVER);
        CHECK(counters_of(context.get()).compiles == 0);
    }
    SECTION("with JIT on it comes before the root, and what it lacks is compiled") {
        options = world.options();
        options.bundles = bundle.c_str();
        options.nvrtc = NORMQUANT_FAKE_NVRTC_12_9;  // not the one that made the bundle
        const ContextPtr context = world.create(options);
        CHECK(prepare_on(context.get(), 4096, nullptr) == NQ_OK);
        CHECK(counters_of(context.get()).layer_hits == kKernels);
        CHECK(prepare_on(context.get(), 7168, nullptr) == NQ_OK);
        CHECK(counters_of(context.get()).compiles == kKernels);
    }
}

TEST_CASE("a process that prepared its problems from a bundle compiles nothing and loads nothing more") {
    Fixture world;
    const std::string bundle = world.directory / "kernels.nqb";
    std::vector<nq_problem> problems;
    for (std::uint32_t i = 1; i <= 20; ++i) problems.push_back(make_problem(512 * i));
    {
        const ContextPtr builder = world.create();
        const char* const archs[] = {"sm_90"};
        REQUIRE(nq_precompile(builder.get(), problems.data(), problems.size(), archs, 1, 0, nullptr, nullptr) == NQ_OK);
        export_bundle(world.cache_dir, bundle);
    }
    nq_context_options options = serving_options(world, bundle);
    const ContextPtr served = world.create(options);
    const int compiled = world.nvrtc.compiles;
    std::vector<nq_kernel*> kernels;
    for (const nq_problem& problem : problems) REQUIRE(nq_prepare(served.get(), &problem, nullptr, &kernels.emplace_back()) == NQ_OK);
    const std::size_t loaded = world.cuda.libraries.size();
    CHECK(loaded == counters_of(served.get()).layer_hits);

    world.cuda.calls.clear();
    for (std::size_t i = 0; i < problems.size(); ++i) {
        for (const std::int64_t rows : {1, 100, 500, 10'000}) {
            const nq_tensors tensors = make_tensors(rows);
            REQUIRE(nq_launch(kernels[i], &tensors, world.stream) == NQ_OK);
            REQUIRE(nq_run(served.get(), &problems[i], &tensors, world.stream) == NQ_OK);
        }
    }
    CHECK(world.cuda.libraries.size() == loaded);
    for (const char* lazy : {"cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction"})
        CHECK(std::find(world.cuda.calls.begin(), world.cuda.calls.end(), lazy) == world.cuda.calls.end());
    CHECK(world.nvrtc.compiles == compiled);
    CHECK(counters_of(served.get()).compiles + counters_of(served.get()).misses == 0);
}

TEST_CASE("a bundle from before an upgrade is named where it matters, once") {
    Fixture world;
    const std::string bundle = world.directory / "kernels.nqb";
    REQUIRE(prepare_on(world.create().get(), 4096, nullptr) == NQ_OK);
    export_bundle(world.cache_dir, bundle);
    const auto serve = [&](std::uint32_t jit, Warnings& warnings) {
        nq_context_options options = warnings.into(world.options());
        options.jit = jit;
        options.cache_dir = "";
        options.bundles = bundle.c_str();
        return world.create(options);
    };
    const std::string told = "bundle " + bundle + " was made from other kernel sources";
    Warnings warnings;
    SECTION("all of it is of other sources") {
        make_foreign(bundle, kKernels);
        CHECK(prepare_on(serve(NQ_JIT_OFF, warnings).get(), 4096, nullptr) == NQ_ERR_NOT_PREPARED);
        CHECK(contains(last_error(), told));
        CHECK(warnings.texts.empty());  // the error says it
        const ContextPtr context = serve(NQ_JIT_ON, warnings);
        CHECK(prepare_on(context.get(), 4096, nullptr) == NQ_OK);
        CHECK(prepare_on(context.get(), 7168, nullptr) == NQ_OK);
        REQUIRE(warnings.texts.size() == 1);
        CHECK(contains(warnings.texts[0], told));
    }
    SECTION("some of it is of these") {
        make_foreign(bundle, kKernels - 1);
        CHECK(prepare_on(serve(NQ_JIT_OFF, warnings).get(), 4096, nullptr) == NQ_ERR_NOT_PREPARED);
        CHECK_FALSE(contains(last_error(), "other kernel sources"));
        CHECK(prepare_on(serve(NQ_JIT_ON, warnings).get(), 4096, nullptr) == NQ_OK);
        CHECK(warnings.texts.empty());
    }
}

TEST_CASE("a compile that nq_run waits for is told of, once") {
    Fixture world;
    Warnings warnings;
    const ContextPtr context = world.create(warnings.into(world.options()));
    const auto run = [&](std::uint32_t hidden) {
        const nq_problem problem = make_problem(hidden);
        const nq_tensors tensors = make_tensors(1);
        return nq_run(context.get(), &problem, &tensors, world.stream);
    };
    const nq_problem problem = make_problem(2048);
    const char* const archs[] = {"sm_90"};
    REQUIRE(nq_precompile(context.get(), &problem, 1, archs, 1, 0, nullptr, nullptr) == NQ_OK);
    REQUIRE(prepare_on(context.get(), 4096, world.stream) == NQ_OK);
    REQUIRE(run(4096) == NQ_OK);
    REQUIRE(run(2048) == NQ_OK);
    CHECK(warnings.texts.empty());
    REQUIRE(run(7168) == NQ_OK);
    REQUIRE(run(8192) == NQ_OK);
    REQUIRE(warnings.texts.size() == 1);
    CHECK(contains(warnings.texts[0], "nq_run compiles"));
    CHECK(contains(warnings.texts[0], "normquant warmup --hidden 7168 --arch sm_90 "));
}

TEST_CASE("a warm-up that cannot leave anything behind has failed") {
    Fixture world;
    const nq_problem problem = make_problem();
    const char* const archs[] = {"sm_90"};
    const auto precompile = [&](const nq_context_options& options) {
        const ContextPtr context = world.create(options);
        return nq_precompile(context.get(), &problem, 1, archs, 1, 0, nullptr, nullptr);
    };
    nq_context_options options = world.options();
    SECTION("the root is a file") {
        std::ofstream(world.cache_dir) << "x";
        CHECK(precompile(options) == NQ_ERR_INVALID_ARGUMENT);
    }
    SECTION("the root is below a file") {
        std::ofstream(world.directory / "file") << "x";
        const std::string below = world.directory / "file/cache";
        options.cache_dir = below.c_str();
        CHECK(precompile(options) == NQ_ERR_CACHE_IO);
    }
    SECTION("read-only") {
        options.cache_flags = NQ_CACHE_READONLY;
        CHECK(precompile(options) == NQ_ERR_CACHE_IO);
        CHECK(contains(last_error(), "NORMQUANT_CACHE_READONLY"));
        CHECK_FALSE(fs::exists(world.cache_dir));
        options.cache_flags = 0;
        CHECK(precompile(options) == NQ_OK);
        options.cache_flags = NQ_CACHE_READONLY;
        CHECK(precompile(options) == NQ_OK);  // all there
    }
    SECTION("an entry's place is taken") {
        REQUIRE(precompile(options) == NQ_OK);
        for (const auto& item : fs::recursive_directory_iterator(world.cache_dir)) {
            if (item.path().extension() != ".nqc") continue;
            fs::remove(item.path());
            fs::create_directory(item.path());
            break;
        }
        CHECK(precompile(options) == NQ_ERR_CACHE_IO);
    }
}

TEST_CASE("counters of ended contexts are summed in the root") {
    Fixture world;
    nq::Logger log(nullptr, nullptr, NQ_LOG_OFF);
    nq::Counters counters;
    const nq::Store store(world.cache_dir, {}, nq::system_files(), log, counters);
    { const ContextPtr idle = world.create(); }
    CHECK_FALSE(fs::exists(world.cache_dir));
    {
        const ContextPtr first = world.create();
        REQUIRE(prepare_on(first.get(), 4096, nullptr) == NQ_OK);
        REQUIRE(prepare_on(first.get(), 4096, nullptr) == NQ_OK);
    }
    CHECK(store.statistics().compiles == kKernels);
    CHECK(store.statistics().memory_hits == 1);
    {
        const ContextPtr second = world.create();
        REQUIRE(prepare_on(second.get(), 4096, nullptr) == NQ_OK);
        // A child that ends does not count its parent's work again.
        const pid_t child = ::fork();
        if (child == 0) {
            nq_context_destroy(second.get());
            ::_exit(0);
        }
        CHECK(child_succeeds(child));
    }
    CHECK(store.statistics().compiles == kKernels);
    CHECK(store.statistics().misses == kKernels);
    CHECK(store.statistics().disk_hits == 0);  // a context that only had hits writes nothing
    {
        const ContextPtr third = world.create();
        REQUIRE(prepare_on(third.get(), 4096, nullptr) == NQ_OK);
        REQUIRE(prepare_on(third.get(), 2048, nullptr) == NQ_OK);
    }
    CHECK(store.statistics().compiles == 2 * kKernels);
    CHECK(store.statistics().disk_hits == kKernels);
}
