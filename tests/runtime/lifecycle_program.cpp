// One life of a process with libnormquant.so, opened as a plugin would open it: lifecycle_program SCENARIO. Exit status 0, and nothing
// on stderr, if all went as it should. NORMQUANT_LIBCUDA and NORMQUANT_NVRTC name the fakes, NORMQUANT_CACHE_DIR an empty directory.
#include "fake_cuda.h"
#include "fake_nvrtc.h"

#include <normquant/normquant.h>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

using namespace nq::test;

namespace {

#define EXPECT(condition)                                                                                                    \
    if (!(condition)) {                                                                                                      \
        std::fprintf(stderr, "line %d: %s does not hold; last error: %s\n", __LINE__, #condition, library.handle != nullptr ? library.nq_last_error() : ""); \
        std::_Exit(1);                                                                                                       \
    } else                                                                                                                   \
        (void)0

#define FUNCTIONS(X)                                                                                                         \
    X(nq_version) X(nq_kernel_sources_digest) X(nq_last_error) X(nq_problem_check) X(nq_reference) X(nq_context_create)      \
    X(nq_context_destroy) X(nq_context_counters) X(nq_context_cache_dir) X(nq_prepare) X(nq_precompile) X(nq_launch) X(nq_run)

struct Library {
    void* handle = nullptr;
#define DECLARE(name) decltype(&::name) name = nullptr;
    FUNCTIONS(DECLARE)
#undef DECLARE

    void open() {
        handle = ::dlopen(NORMQUANT_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) {
            std::fprintf(stderr, "%s\n", ::dlerror());
            std::_Exit(1);
        }
#define BIND(name) name = reinterpret_cast<decltype(name)>(::dlsym(handle, #name));
        FUNCTIONS(BIND)
#undef BIND
    }
    void close() {
        ::dlclose(handle);
        *this = {};
    }
};
Library library;

bool is_loaded(const char* path) {
    void* handle = ::dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (handle != nullptr) ::dlclose(handle);
    return handle != nullptr;
}

bool maps_mention(const char* text) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find(text) != std::string::npos) return true;
    }
    return false;
}

template <class Function>
Function fake_symbol(const char* variable, const char* name) {
    void* handle = ::dlopen(std::getenv(variable), RTLD_NOW | RTLD_LOCAL);
    void* address = handle != nullptr ? ::dlsym(handle, name) : nullptr;
    EXPECT(address != nullptr);
    return reinterpret_cast<Function>(address);
}
FakeCuda& cuda() { return *fake_symbol<decltype(&nq_fake_cuda)>("NORMQUANT_LIBCUDA", "nq_fake_cuda")(); }
FakeNvrtc& nvrtc() { return *fake_symbol<decltype(&nq_fake_nvrtc)>("NORMQUANT_NVRTC", "nq_fake_nvrtc")(); }

nq_problem problem_of(std::uint32_t hidden = 4096) {
    nq_problem problem = NQ_PROBLEM_INIT;
    problem.hidden = hidden;
    return problem;
}

nq_tensors some_tensors() {
    nq_tensors tensors = NQ_TENSORS_INIT;
    tensors.rows = 3;
    tensors.x = reinterpret_cast<const void*>(0x100000000000);
    tensors.weight = reinterpret_cast<const void*>(0x200000000000);
    tensors.fp4 = reinterpret_cast<void*>(0x300000000000);
    tensors.scales = reinterpret_cast<void*>(0x400000000000);
    return tensors;
}

nq_context* create() {
    nq_context* context = nullptr;
    EXPECT(library.nq_context_create(nullptr, &context) == NQ_OK);
    return context;
}

CUstream make_stream() { return cuda().add_stream(cuda().add_context(0)); }

nq_status prepare(nq_context* context, CUstream stream, nq_kernel** kernel, std::uint32_t hidden = 4096) {
    const nq_problem problem = problem_of(hidden);
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = stream;
    return library.nq_prepare(context, &problem, &options, kernel);
}

nq_status launch(const nq_kernel* kernel, CUstream stream) {
    const nq_tensors tensors = some_tensors();
    return library.nq_launch(kernel, &tensors, stream);
}

nq_status run(nq_context* context, CUstream stream) {
    const nq_problem problem = problem_of();
    const nq_tensors tensors = some_tensors();
    return library.nq_run(context, &problem, &tensors, stream);
}

nq_status precompile(nq_context* context) {
    const nq_problem problem = problem_of();
    const char* const archs[] = {"sm_80"};
    return library.nq_precompile(context, &problem, 1, archs, 1, 1, nullptr, nullptr);
}

// A failure with a text that is too long to need no memory.
void fail() {
    EXPECT(library.nq_problem_check(nullptr) == NQ_ERR_INVALID_ARGUMENT);
    EXPECT(std::strlen(library.nq_last_error()) > 15);
}

struct Used {
    nq_context* context = create();
    CUstream stream = make_stream();
    nq_kernel* kernel = nullptr;
    Used() {
        EXPECT(prepare(context, stream, &kernel) == NQ_OK);
        EXPECT(launch(kernel, stream) == NQ_OK);
    }
};

// Ends with what the body made of it, through exit() as any program does.
template <class Body>
bool in_child(Body body) {
    const pid_t child = ::fork();
    if (child == 0) {
        body();
        std::exit(0);
    }
    int status = -1;
    return ::waitpid(child, &status, 0) == child && status == 0;
}

void load_only() {
    library.open();
    const auto untouched = [] {
        return !is_loaded(std::getenv("NORMQUANT_LIBCUDA")) && !is_loaded(std::getenv("NORMQUANT_NVRTC")) && !maps_mention("libcuda.so") &&
               !maps_mention("libnvrtc");
    };
    EXPECT(untouched());
    EXPECT(library.nq_version() == NQ_VERSION);
    EXPECT(std::strlen(library.nq_kernel_sources_digest()) == 32);
    const nq_problem problem = problem_of(16);
    EXPECT(library.nq_problem_check(&problem) == NQ_OK);
    alignas(16) unsigned char x[32] = {}, weight[32] = {}, fp4[8], scales[1];
    nq_tensors tensors = NQ_TENSORS_INIT;
    tensors.rows = 1;
    tensors.x = x;
    tensors.weight = weight;
    tensors.fp4 = fp4;
    tensors.scales = scales;
    EXPECT(library.nq_reference(&problem, &tensors, 0) == NQ_OK);
    nq_context* const context = create();
    EXPECT(std::strlen(library.nq_context_cache_dir(context)) > 0);
    nq_counters counters = NQ_COUNTERS_INIT;
    EXPECT(library.nq_context_counters(context, &counters) == NQ_OK);
    library.nq_context_destroy(context);
    EXPECT(untouched());
}

void exit_while_loaded() {
    library.open();
    const Used used;
    fail();
}

// Another thread launches, one compiles and one waits for it.
void exit_from_a_thread() {
    library.open();
    const Used used;
    nvrtc().milliseconds = 20;
    static std::atomic<bool> launched{false};
    for (int i = 0; i < 2; ++i) {
        std::thread([used] {
            nq_kernel* kernel = nullptr;
            for (std::uint32_t hidden = 512;; hidden += 16) (void)prepare(used.context, used.stream, &kernel, hidden);
        }).detach();
    }
    std::thread([used] {
        for (;; launched = true) (void)launch(used.kernel, used.stream);
    }).detach();
    std::thread([] {
        while (!launched) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        std::exit(0);
    }).join();
}

void first_use_on_a_thread() {
    library.open();
    nq_context* const context = create();
    std::thread([context] {
        EXPECT(precompile(context) == NQ_OK);
        nq_kernel* kernel = nullptr;
        EXPECT(prepare(context, make_stream(), &kernel) == NQ_OK);
        fail();
    }).join();
}

// Compiles with whatever libnvrtc there is, on a thread that is not waited for; nothing where there is none.
void real_nvrtc_on_a_thread() {
    library.open();
    static std::atomic<bool> done{false};
    std::thread([] {
        const nq_status status = precompile(create());
        EXPECT(status == NQ_OK || status == NQ_ERR_NVRTC_MISSING);
        done = true;
    }).detach();
    while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void open_again() {
    for (int turn = 0; turn < 3; ++turn) {
        library.open();
        // A thread that has had a failure keeps the library until it ends.
        std::thread([] {
            fail();
            const Used used;
            library.nq_context_destroy(used.context);
        }).join();
        library.close();
        EXPECT(!is_loaded(NORMQUANT_LIBRARY));
    }
    // With contexts that nobody destroyed: they are lost, and that is all.
    library.open();
    std::thread([] { const Used used; }).join();
    library.close();
    library.open();
    const Used used;
}

void close_under_a_thread() {
    library.open();
    std::atomic<bool> failed{false}, closed{false};
    std::thread thread([&] {
        fail();
        failed = true;
        while (!closed) std::this_thread::yield();
    });
    while (!failed) std::this_thread::yield();
    library.close();
    closed = true;
    thread.join();
}

// What a program destroys last may still use the library, whose own objects have gone by then.
struct Last {
    nq_context* context = nullptr;
    nq_kernel* kernel = nullptr;
    CUstream stream = nullptr;
    char digest[33] = {};

    ~Last() {
        if (context == nullptr) return;
        EXPECT(std::strcmp(library.nq_kernel_sources_digest(), digest) == 0);
        EXPECT(launch(kernel, stream) == NQ_OK);
        nq_kernel* other = nullptr;
        EXPECT(prepare(context, stream, &other, 7168) == NQ_OK);
        for (int i = 0; i < 3; ++i) {
            fail();
            nq_tensors tensors = some_tensors();
            tensors.rows = -1;
            EXPECT(library.nq_launch(kernel, &tensors, stream) == NQ_ERR_INVALID_ARGUMENT);
            EXPECT(std::strstr(library.nq_last_error(), "nq_tensors.rows is -1") != nullptr);
        }
        library.nq_context_destroy(context);
    }
};

void use_in_the_last_destructor() {
    static Last last;  // made before the library's objects
    library.open();
    std::strcpy(last.digest, library.nq_kernel_sources_digest());
    fail();  // makes this thread's text, which goes first of all
    const Used used;
    last.context = used.context;
    last.kernel = used.kernel;
    last.stream = used.stream;
}

void fork_before_use() {
    library.open();
    nq_context* const context = create();
    const CUstream stream = make_stream();
    const auto use = [&] {
        nq_kernel* kernel = nullptr;
        EXPECT(prepare(context, stream, &kernel) == NQ_OK);
        EXPECT(launch(kernel, stream) == NQ_OK);
        EXPECT(run(context, stream) == NQ_OK);
        library.nq_context_destroy(context);
    };
    EXPECT(in_child(use));
    EXPECT(in_child([&] { EXPECT(in_child(use)); }));
    use();
}

void fork_after_use() {
    library.open();
    const Used used;
    nq_context* const idle = create();
    const auto refused = [&] {
        const std::size_t calls = cuda().calls.size();
        nq_kernel* kernel = nullptr;
        EXPECT(prepare(used.context, used.stream, &kernel) == NQ_ERR_FORKED);
        EXPECT(prepare(used.context, used.stream, &kernel, 7168) == NQ_ERR_FORKED);
        EXPECT(run(used.context, used.stream) == NQ_ERR_FORKED);
        EXPECT(launch(used.kernel, used.stream) == NQ_ERR_FORKED);
        EXPECT(precompile(used.context) == NQ_OK);
        library.nq_context_destroy(used.context);
        EXPECT(cuda().calls.size() == calls);
        // For other contexts, old and new, the driver says it.
        EXPECT(prepare(idle, used.stream, &kernel) == NQ_ERR_FORKED);
        EXPECT(prepare(create(), used.stream, &kernel) == NQ_ERR_FORKED);
        EXPECT(std::strstr(library.nq_last_error(), "forked child") != nullptr);
        library.nq_context_destroy(idle);
    };
    EXPECT(in_child(refused));
    EXPECT(in_child([&] { EXPECT(in_child(refused)); }));
    EXPECT(in_child([] {}));
    EXPECT(launch(used.kernel, used.stream) == NQ_OK);
    EXPECT(run(used.context, used.stream) == NQ_OK);
    library.nq_context_destroy(used.context);
}

// What the parent was told is not what the child is told.
void fork_after_a_failure() {
    library.open();
    nq_context* const context = create();
    const CUstream stream = make_stream();
    nq_kernel* kernel = nullptr;
    cuda().failures["cuInit"] = CUDA_ERROR_NO_DEVICE;
    EXPECT(prepare(context, stream, &kernel) == NQ_ERR_UNSUPPORTED_DEVICE);
    EXPECT(in_child([&] {
        cuda().failures.clear();
        EXPECT(prepare(context, stream, &kernel) == NQ_OK);
    }));
    EXPECT(prepare(context, stream, &kernel) == NQ_ERR_UNSUPPORTED_DEVICE);
}

struct Scenario {
    const char* name;
    void (*run)();
};
constexpr Scenario kScenarios[] = {
#define SCENARIO(name) {#name, name}
    SCENARIO(load_only),      SCENARIO(exit_while_loaded),    SCENARIO(exit_from_a_thread),         SCENARIO(first_use_on_a_thread),
    SCENARIO(open_again),     SCENARIO(close_under_a_thread), SCENARIO(use_in_the_last_destructor), SCENARIO(fork_before_use),
    SCENARIO(fork_after_use), SCENARIO(fork_after_a_failure), SCENARIO(real_nvrtc_on_a_thread),
#undef SCENARIO
};

}  // namespace

int main(int argc, char** argv) {
    for (const Scenario& scenario : kScenarios) {
        if (argc == 2 && std::strcmp(argv[1], scenario.name) == 0) {
            scenario.run();
            return 0;
        }
        if (argc == 1) std::puts(scenario.name);
    }
    return argc == 1 ? 0 : 2;
}
