// What the key of a kernel is made of: everything that can change its code, and nothing of the place where it is asked.
#include "fixture.h"
#include "runtime/cubin.h"

#include "support/skip.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <locale>
#include <set>
#include <stdexcept>
#include <string_view>

using namespace nq::test;
namespace fs = std::filesystem;

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
          "variant: throughput threads=64 block=640 load=16 groups=10 buffers=1\n"
          "arch: sm_100f\n"
          "source: ...\n"
          "headers: ...\n"
          "options: --gpu-architecture=sm_100f --std=c++17 --fmad=false\n"
          "gated options: 12.9 --no-cache;13.0 --minimal;\n");
    CHECK(frozen_key(request) == "da63014fe08a8e82a6a8d7465bb7675c");
    nq::Problem mxfp4 = base_problem();
    mxfp4.hidden = 2880;
    mxfp4.dtype = mxfp4.weight_dtype = nq::DType::fp16;
    mxfp4.block_size = 32;
    mxfp4.scale_format = nq::ScaleFormat::ue8m0;
    mxfp4.scale_layout = nq::ScaleLayout::swizzled;
    CHECK(frozen_key(request_for(mxfp4, "sm_80")) == "8d2c15c17ebc5213f8b33ca7c25019f1");
    CHECK(frozen_key(request_for(mxfp4, "sm_120f", 1)) == "8e4f4c680ea3aed49b00cfc66be24154");
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
    CHECK(differs(changed([](nq::Problem& p) { p.scale_layout = nq::ScaleLayout::both; })));
    CHECK(differs(changed([](nq::Problem& p) { p.weight_bias_one = true; })));
    CHECK(differs(changed([](nq::Problem& p) { p.y_out = true; })));
    CHECK(differs(changed([](nq::Problem& p) { p.op = nq::Op::add_rmsnorm; })));
    CHECK(differs(changed([](nq::Problem& p) { p.device_rows = true; })));
    CHECK(differs(changed([](nq::Problem& p) { p.batches = true; })));
    CHECK(differs(changed([](nq::Problem& p) { p.overlap = true; })));
    nq::Problem overlapping = base;
    overlapping.overlap = true;
    for (const char* arch : {"sm_80", "sm_86", "sm_89"}) CHECK(key_of(overlapping, arch) == key_of(base, arch));  // launches cannot
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
    CHECK(nq::compiler_of(nvrtc, "NVRTC_APPEND_FLAGS=-G;") != compiler);
    nvrtc.path = "/elsewhere/libnvrtc.so.13";
    nvrtc.found_as = "/link";
    nvrtc.origin = "loader path";
    CHECK(nq::compiler_of(nvrtc) == compiler);  // where it lies means nothing
    nvrtc.identity = "build-id:01";
    CHECK(nq::compiler_of(nvrtc) != compiler);
}

namespace {

std::string some_keys() { return key_of(base_problem(), "sm_90") + key_of(base_problem(), "sm_100f", 1); }

// This program again, elsewhere on the disk, with something of its surroundings changed: what it says the keys are.
class Copy {
public:
    Copy() {
        fs::permissions(directory_.path(), fs::perms::owner_all | fs::perms::others_read | fs::perms::others_exec);
        fs::create_directories(directory_ / "other/prefix");
        fs::copy_file("/proc/self/exe", program_);
    }
    struct Answer {
        bool changed = false;  // the surroundings could be
        std::string keys;
    };
    Answer keys_in(const std::function<bool()>& change) const {
        int ends[2];
        REQUIRE(::pipe(ends) == 0);
        const pid_t child = ::fork();
        if (child == 0) {
            if (::dup2(ends[1], STDOUT_FILENO) != STDOUT_FILENO) ::_exit(3);
            ::close(ends[0]);
            ::close(ends[1]);
            if (!change()) ::_exit(kNotChanged);
            ::execl(program_.c_str(), program_.c_str(), "[keys]", static_cast<char*>(nullptr));
            ::_exit(3);
        }
        ::close(ends[1]);
        std::string said;
        char buffer[4096];
        for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<std::size_t>(n));
        ::close(ends[0]);
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        REQUIRE(WIFEXITED(status));
        if (WEXITSTATUS(status) == kNotChanged) return {};
        INFO(said);
        REQUIRE(WEXITSTATUS(status) == 0);
        const std::size_t begin = said.find(kMark);
        REQUIRE(begin != said.npos);
        return {true, said.substr(begin + kMark.size(), some_keys().size())};
    }
    const std::string& prefix() const { return directory_.path(); }
    static constexpr std::string_view kMark = "keys: ";

private:
    static constexpr int kNotChanged = 42;
    const TempDirectory directory_;
    const std::string program_ = directory_ / "other/prefix/program";
};

bool set_all(std::initializer_list<std::pair<const char*, const char*>> variables) {
    return std::ranges::all_of(variables, [](const auto& each) { return ::setenv(each.first, each.second, 1) == 0; });
}

}  // namespace

TEST_CASE("print the keys, for the tests below", "[.][keys]") {
    // What streams and printf make of numbers, by the locale that the environment names.
    std::setlocale(LC_ALL, "");
    try {
        std::locale::global(std::locale(""));
    } catch (const std::runtime_error&) {  // it names none
    }
    const std::string line = std::string(Copy::kMark) + some_keys();
    if (const char* wanted = std::getenv("NQ_TEST_DECIMAL_POINT"); wanted != nullptr)
        REQUIRE(std::string(std::localeconv()->decimal_point) == wanted);
    std::puts(line.c_str());
    std::fflush(stdout);
}

TEST_CASE("the key is the same in every place and every surroundings") {
    const Copy copy;
    const std::string here = some_keys();
    const auto is_same = [&](const std::function<bool()>& change) {
        const Copy::Answer answer = copy.keys_in(change);
        return answer.changed && answer.keys == here;
    };
    CHECK(is_same([] { return true; }));  // the other prefix alone
    CHECK(is_same([&] { return ::chdir(copy.prefix().c_str()) == 0; }));
    CHECK(is_same([] { return ::chdir("/") == 0; }));
    for (const mode_t mask : {mode_t{0}, mode_t{0777}}) CHECK(is_same([mask] { return ::umask(mask), true; }));
    CHECK(is_same([&] { return set_all({{"TMPDIR", "/nowhere"}, {"HOME", "/nowhere"}, {"PWD", "/elsewhere"}}); }));
    CHECK(is_same([&] { return set_all({{"TMPDIR", copy.prefix().c_str()}}); }));
    CHECK(is_same([] { return set_all({{"CUDA_HOME", "/nowhere"}, {"TZ", "Asia/Kolkata"}, {"LANG", "tr_TR.UTF-8"}}); }));
    CHECK(is_same([] { return ::clearenv() == 0; }));

    // Nothing of a place is in what goes into it.
    const nq::CubinRequest request = request_for(base_problem(), "sm_90");
    for (const auto& [label, value] : request.fields.fields) {
        INFO(label << ": " << value);
        for (const std::string place : {NORMQUANT_SOURCE_ROOT, NORMQUANT_BINARY_ROOT}) CHECK_FALSE(contains(value, place));
    }
    CHECK_FALSE(contains(request.source, NORMQUANT_SOURCE_ROOT));
    CHECK_FALSE(contains(request.source, NORMQUANT_BINARY_ROOT));
}

TEST_CASE("the key is the same for every user", "[privileged]") {
    const Copy copy;
    const Copy::Answer answer = copy.keys_in([] { return ::setgid(4242) == 0 && ::setuid(4242) == 0; });
    if (!answer.changed) return skip("no right to become another user");
    CHECK(answer.keys == some_keys());
}

TEST_CASE("the key is the same where numbers are written as 1.234,5", "[privileged]") {
    // A locale of our own, as those of the system may lack any such.
    const TempDirectory locales;
    std::ofstream(locales / "source") << "comment_char %\nescape_char /\nLC_NUMERIC\ndecimal_point \"<U002C>\"\n"
                                         "thousands_sep \"<U002E>\"\ngrouping 3;3\nEND LC_NUMERIC\n";
    const std::string define =
        "localedef -c -i " + (locales / "source") + " -f UTF-8 " + (locales / "comma") + " >/dev/null 2>&1";
    (void)!std::system(define.c_str());  // it warns of what the locale lacks
    if (!fs::exists(locales / "comma/LC_NUMERIC")) return skip("localedef cannot make a locale here");
    const Copy copy;
    const Copy::Answer answer = copy.keys_in([&] {
        return set_all({{"LOCPATH", locales.path().c_str()}, {"LC_ALL", "comma"}, {"NQ_TEST_DECIMAL_POINT", ","}});
    });
    REQUIRE(answer.changed);
    CHECK(answer.keys == some_keys());
}
