// What the key of a kernel is made of: everything that can change its code, and nothing of the place where it is asked.
#include "fixture.h"
#include "runtime/cubin.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>

using namespace nq::test;

namespace {

nq::Problem base_problem() {
    const auto problem = make_problem(4096);
    return *nq::problem_from_c(&problem);
}

nq::CubinRequest request_for(const nq::Problem& problem, const char* arch_name, std::size_t variant = 0) {
    const nq::Arch arch = *nq::parse_arch(arch_name);
    return nq::make_request(problem, nq::plans_for(problem, arch).at(variant), arch);
}

std::string key_of(const nq::Problem& problem, const char* arch, std::size_t variant = 0) {
    return nq::hex(request_for(problem, arch, variant).key);
}

// The fields, with those that every change of the kernel changes left out.
std::string text_of(const nq::CubinRequest& request) {
    std::string text;
    for (const auto& [label, value] : request.fields.fields)
        text += label + ": " + (label == "source" || label == "headers" ? "..." : value) + "\n";
    return text;
}

// The key that these fields would have with a source and headers that never change.
std::string frozen_key(nq::CubinRequest request) {
    for (auto& [label, value] : request.fields.fields)
        if (label == "source" || label == "headers") value = label;
    return nq::hex(nq::request_key(request.fields));
}

}  // namespace

// A difference here means that caches and bundles in the field are not found any more. If that is meant, it takes a new
// schema and new constants, and a line in the change log.
TEST_CASE("golden fields and keys") {
    const nq::CubinRequest request = request_for(base_problem(), "sm_100f");
    CHECK(text_of(request) ==
          "schema: 2\n"
          "problem: op=rmsnorm hidden=4096 dtype=bf16 weight=bf16 block=16 scale=e4m3 layout=linear bias=0 y_out=0\n"
          "variant: throughput threads=64 block=64 load=16\n"
          "arch: sm_100f\n"
          "source: ...\n"
          "headers: ...\n"
          "options: --gpu-architecture=sm_100f --std=c++17 --fmad=false\n"
          "gated options: 12.9 --no-cache;13.0 --minimal;\n");
    CHECK(frozen_key(request) == "197355fc5cfdadb4f6194ef0fabbc781");
    nq::Problem mxfp4 = base_problem();
    mxfp4.hidden = 2880;
    mxfp4.dtype = mxfp4.weight_dtype = nq::DType::fp16;
    mxfp4.block_size = 32;
    mxfp4.scale_format = nq::ScaleFormat::ue8m0;
    mxfp4.scale_layout = nq::ScaleLayout::swizzled;
    CHECK(frozen_key(request_for(mxfp4, "sm_80")) == "8d2c15c17ebc5213f8b33ca7c25019f1");
    CHECK(frozen_key(request_for(mxfp4, "sm_120f", 1)) == "2143f7b75170961bd45c04ab12f2ab64");
    nq::NvrtcFile nvrtc;
    nvrtc.identity = "build-id:65be0db342ad51a06876e71e210bccc5aa8322cf";
    CHECK(nq::hex(nq::compiler_of(nvrtc)) == "500925472013b22b7668196d92acc8d0");
}

TEST_CASE("each field of the problem, the plan and the target changes the key") {
    const nq::Problem base = base_problem();
    std::set<std::string> keys = {key_of(base, "sm_90")};
    std::size_t wanted = 1;
    const auto differs = [&](const std::string& key) { return keys.insert(key).second && keys.size() == ++wanted; };
    const auto changed = [&](const std::function<void(nq::Problem&)>& change) {
        nq::Problem problem = base;
        change(problem);
        return key_of(problem, "sm_90");
    };
    CHECK(differs(changed([](nq::Problem& p) { p.hidden = 4112; })));
    CHECK(differs(changed([](nq::Problem& p) { p.dtype = p.weight_dtype = nq::DType::fp16; })));
    CHECK(differs(changed([](nq::Problem& p) { p.weight_dtype = nq::DType::fp32; })));
    CHECK(differs(changed([](nq::Problem& p) { p.block_size = 32; })));
    CHECK(differs(changed([](nq::Problem& p) { p.scale_format = nq::ScaleFormat::ue8m0; })));
    CHECK(differs(changed([](nq::Problem& p) { p.scale_layout = nq::ScaleLayout::swizzled; })));
    CHECK(differs(changed([](nq::Problem& p) { p.weight_bias_one = true; })));
    CHECK(differs(changed([](nq::Problem& p) { p.y_out = true; })));
    CHECK(differs(changed([](nq::Problem& p) { p.op = nq::Op::add_rmsnorm; })));
    for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103a", "sm_110f",
                             "sm_120", "sm_120a", "sm_120f", "sm_121a"}) {
        INFO(arch);
        CHECK(differs(key_of(base, arch)));
    }
    CHECK(differs(key_of(base, "sm_90", 1)));

    // And each field of the list by itself, the source and the headers included.
    const nq::CubinRequest request = request_for(base, "sm_90");
    for (std::size_t i = 0; i < request.fields.fields.size(); ++i) {
        nq::KeyFields fields = request.fields;
        fields.fields[i].second += " ";
        CHECK(differs(nq::hex(nq::request_key(fields))));
    }

    nq::NvrtcFile nvrtc;
    nvrtc.identity = "build-id:00";
    const auto compiler = nq::compiler_of(nvrtc);
    nvrtc.environment = "NVRTC_APPEND_FLAGS=-G;";
    CHECK(nq::compiler_of(nvrtc) != compiler);
    nvrtc.environment.clear();
    nvrtc.path = "/elsewhere/libnvrtc.so.13";
    nvrtc.found_as = "/link";
    nvrtc.origin = "loader path";
    CHECK(nq::compiler_of(nvrtc) == compiler);  // where it lies means nothing
    nvrtc.identity = "build-id:01";
    CHECK(nq::compiler_of(nvrtc) != compiler);
}

TEST_CASE("the key is the same in every place, for every user and in every language") {
    const auto keys = [] { return key_of(base_problem(), "sm_90") + key_of(base_problem(), "sm_100f", 1); };
    const std::string here = keys();
    int reached = 0;
    // In a child, with something of its surroundings changed.
    const auto same_in = [&](const std::function<bool()>& change) {
        const pid_t child = ::fork();
        if (child == 0) ::_exit(!change() ? 2 : keys() == here ? 0 : 1);
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        REQUIRE(WIFEXITED(status));
        reached += WEXITSTATUS(status) == 0;
        return WEXITSTATUS(status) != 1;
    };
    const TempDirectory directory;
    CHECK(same_in([&] { return ::chdir(directory.path().c_str()) == 0; }));
    CHECK(same_in([] { return ::umask(0) != 0777; }));
    CHECK(same_in([] { return ::setenv("TMPDIR", "/nowhere", 1) == 0 && ::setenv("HOME", "/nowhere", 1) == 0; }));
    CHECK(same_in([] { return ::setenv("CUDA_HOME", "/nowhere", 1) == 0 && ::setenv("TZ", "Asia/Kolkata", 1) == 0; }));
    CHECK(reached == 4);
    for (const char* locale : {"C", "C.UTF-8", "de_DE.UTF-8", "tr_TR.UTF-8"})  // those that exist here
        CHECK(same_in([&] { return ::setlocale(LC_ALL, locale) != nullptr; }));
    CHECK(same_in([] { return ::setgid(4242) == 0 && ::setuid(4242) == 0; }));  // root only
}
