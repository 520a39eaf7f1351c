// What a fleet does: a program records its problems, a builder without a GPU makes a bundle, machines without NVRTC serve from it.
// The program is `normquant quantize` on the GPU that computes nothing.
#include "cache/lock.h"
#include "cache_fixture.h"
#include "support/catch.h"
#include "support/foreign_bundle.h"
#include "support/skip.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <sstream>

using namespace nq::test;
using nq::cli::Element;
namespace fs = std::filesystem;

namespace {

const std::string kNoNvrtc = "NORMQUANT_NVRTC=/nonexistent/libnvrtc.so";

struct Fleet {
    CacheFixture builder;
    const TempDirectory& directory = builder.directory;
    std::string recorded = directory / "recorded.json", bundle = directory / "kernels.nqb";

    Fleet() {
        save(directory / "x.npy", npy(npy_dictionary("<f2", "(3, 64)"), values(Element::fp16, 192, 1)));
        save(directory / "w.npy", npy(npy_dictionary("<f2", "(64,)"), values(Element::fp16, 64, 2)));
    }

    std::vector<std::string> engine(const std::string& format, const std::string& layout, const std::string& out = "out") const {
        return {"quantize", "--input", directory / "x.npy", "--weight", directory / "w.npy", "--out", directory / out,
                "--device", "gpu", "--format", format, "--layout", layout, "--json"};
    }

    // As in an image with the library and the bundle alone.
    std::vector<std::string> serving(const std::string& file) const {
        return {"NORMQUANT_CACHE_DIR=", "NORMQUANT_JIT=off", kNoNvrtc, "NORMQUANT_LIBCUDA=" NORMQUANT_FAKE_GPU, "NORMQUANT_BUNDLES=" + file};
    }
    ToolResult serve(const std::string& format, const std::string& layout) const {
        return run_tool(engine(format, layout), serving(bundle));
    }

    // Two problems, of two runs.
    void record() const {
        for (const auto& [format, layout] : {std::pair{"nvfp4", "swizzled"}, std::pair{"mxfp4", "linear"}}) {
            const ToolResult result = run_tool(engine(format, layout), {"NORMQUANT_LIBCUDA=" NORMQUANT_FAKE_GPU, "NORMQUANT_NVRTC=" NORMQUANT_FAKE_NVRTC,
                                                                        "NORMQUANT_RECORD=" + recorded});
            INFO(result.err);
            REQUIRE(result.exit_code == 0);
        }
    }
    void build() const {
        const ToolResult result = builder.run({"warmup", "--manifest", recorded, "--bundle", bundle});
        INFO(result.err);
        REQUIRE(result.exit_code == 0);
    }

    std::string record_text() const {
        const Blob bytes = read(recorded);
        return {bytes.begin(), bytes.end()};
    }
};

std::string message_of(const ToolResult& result) { return result.json()["error"]["message"].get<std::string>(); }

std::string command_in(const std::string& message) {
    constexpr std::string_view kBefore = " To add: normquant ";
    const std::size_t at = message.find(kBefore);
    return at == std::string::npos ? "" : message.substr(at + kBefore.size());
}

std::vector<std::string> words_of(const std::string& command) {
    std::istringstream stream(command);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
}

// As a shell has them.
std::vector<std::string> words_of_shell(const std::string& command) {
    FILE* const shell = ::popen(("printf '%s\\n' " + command).c_str(), "r");
    REQUIRE(shell != nullptr);
    std::string text;
    for (int c = std::fgetc(shell); c != EOF; c = std::fgetc(shell)) text += static_cast<char>(c);
    ::pclose(shell);
    std::vector<std::string> words;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) words.push_back(line);
    return words;
}

}  // namespace

TEST_CASE("what a program records is what a builder makes and a machine without NVRTC serves") {
    const Fleet fleet;
    fleet.record();
    const std::string lines = fleet.record_text();
    CHECK(lines ==
          "{\"hidden\":64,\"op\":\"rmsnorm\",\"dtype\":\"fp16\",\"weight_dtype\":\"same\",\"weight_bias\":0,\"format\":\"nvfp4\","
          "\"layout\":\"swizzled\",\"y_out\":\"off\",\"overlap\":\"off\",\"device_rows\":\"off\",\"batches\":\"off\",\"arch\":\"sm_90\"}\n"
          "{\"hidden\":64,\"op\":\"rmsnorm\",\"dtype\":\"fp16\",\"weight_dtype\":\"same\",\"weight_bias\":0,\"format\":\"mxfp4\","
          "\"layout\":\"linear\",\"y_out\":\"off\",\"overlap\":\"off\",\"device_rows\":\"off\",\"batches\":\"off\",\"arch\":\"sm_90\"}\n");
    fleet.record();
    CHECK(fleet.record_text() == lines);  // each once

    fleet.build();
    CHECK(fleet.serve("nvfp4", "swizzled").exit_code == 0);
    CHECK(fleet.serve("mxfp4", "linear").exit_code == 0);
    CHECK(fleet.serve("mxfp4", "swizzled").exit_code == 1);
}

TEST_CASE("a missing kernel is an error with the command that adds it to the bundle") {
    const Fleet fleet;
    fleet.record();
    fleet.build();
    const ToolResult missed = fleet.serve("mxfp4", "swizzled");
    CHECK(missed.exit_code == 1);
    const std::string command = command_in(message_of(missed));
    CHECK(command == "warmup --hidden 64 --arch sm_90 --dtype fp16 --format mxfp4 --layout swizzled --bundle " + fleet.bundle);
    const ToolResult added = fleet.builder.run(words_of(command));
    INFO(added.err);
    REQUIRE(added.exit_code == 0);
    for (const char* format : {"nvfp4", "mxfp4"}) CHECK(fleet.serve(format, "swizzled").exit_code == 0);
    CHECK(fleet.serve("mxfp4", "linear").exit_code == 0);  // what the bundle had, it has
}

TEST_CASE("a bundle for other targets is a miss") {
    const Fleet fleet;
    fleet.record();
    REQUIRE(fleet.builder.run({"warmup", "--manifest", fleet.recorded, "--arch", "b200,a100", "--bundle", fleet.bundle}).exit_code == 0);
    const ToolResult missed = fleet.serve("mxfp4", "linear");
    CHECK(missed.exit_code == 1);
    CHECK(message_of(missed).find("JIT is off") != std::string::npos);
    CHECK(command_in(message_of(missed)).starts_with("warmup --hidden 64 --arch sm_90 "));
}

TEST_CASE("a problem that was missed is recorded as well") {
    const Fleet fleet;
    std::vector<std::string> settings = fleet.serving("");
    settings.push_back("NORMQUANT_RECORD=" + fleet.recorded);
    CHECK(run_tool(fleet.engine("nvfp4", "linear"), settings).exit_code == 1);
    fleet.build();
    CHECK(fleet.serve("nvfp4", "linear").exit_code == 0);
}

TEST_CASE("a record begins a line of its own, whatever the file ends with") {
    const Fleet fleet;
    fleet.record();
    const std::string lines = fleet.record_text(), first = lines.substr(0, lines.find('\n') + 1);
    const auto after = [&](const std::string& before) {
        save(fleet.recorded, {before.begin(), before.end()});
        fleet.record();
        return fleet.record_text();
    };
    const std::string by_hand = R"({"hidden": 128, "arch": "sm_90"})", torn = R"({"hidden":64,"op":"rms)";
    CHECK(after(by_hand) == by_hand + "\n" + lines);
    CHECK(after(by_hand + "\n") == by_hand + "\n" + lines);
    CHECK(after(torn) == torn + "\n" + lines);
    CHECK(after("") == lines);
    CHECK(after(torn + first) == torn + first + lines);  // as it stands there, nobody reads it
    after(torn);
    fleet.build();
    CHECK(fleet.serve("nvfp4", "swizzled").exit_code == 0);
}

TEST_CASE("a record that cannot be written is a warning") {
    const Fleet fleet;
    const ToolResult result = run_tool(fleet.engine("nvfp4", "linear"), {"NORMQUANT_LIBCUDA=" NORMQUANT_FAKE_GPU, "NORMQUANT_NVRTC=" NORMQUANT_FAKE_NVRTC,
                                                                         "NORMQUANT_RECORD=" + fleet.directory.path() + "/none/recorded.json"});
    CHECK(result.exit_code == 0);
    CHECK(result.err.find("NORMQUANT_RECORD: not recorded: ") != std::string::npos);
}

TEST_CASE("a bundle is whole, or it is not written") {
    const Fleet fleet;
    fleet.record();
    fleet.build();
    const Blob before = read(fleet.bundle);
    const ToolResult failed = fleet.builder.run({"warmup", "--manifest", fleet.recorded, "--hidden", "128", "--bundle", fleet.bundle, "--arch", "sm_90", "--json"},
                                                {"NORMQUANT_JIT=off"});
    CHECK(failed.exit_code == 3);
    CHECK(failed.json()["bundle"].is_null());
    CHECK(read(fleet.bundle) == before);
    // Nor does it take the place of another file, or need a disk cache in silence.
    save(fleet.bundle, {'x'});
    const ToolResult other = fleet.builder.run({"warmup", "--hidden", "64", "--arch", "sm_90", "--bundle", fleet.bundle});
    CHECK(other.exit_code == 2);
    CHECK(read(fleet.bundle) == Blob{'x'});
    const ToolResult homeless = fleet.builder.run({"warmup", "--hidden", "64", "--arch", "sm_90", "--bundle", fleet.bundle}, {"NORMQUANT_CACHE_DIR="});
    CHECK(homeless.exit_code == 2);
    CHECK(homeless.err.find("--bundle needs a cache") != std::string::npos);
}

TEST_CASE("a bundle directory that cannot be written is found before anything is compiled") {
    const CacheFixture f;
    const auto refused = [&](const std::string& bundle, const std::string& reason) {
        const ToolResult result = f.run({"warmup", "--hidden", "64", "--arch", "sm_90", "--bundle", bundle});
        INFO(result.err);
        CHECK(result.exit_code == 2);
        CHECK(result.err.find(reason) != std::string::npos);
        CHECK_FALSE(fs::exists(f.root));
    };
    refused(f.directory / "none/kernels.nqb", "/none cannot be written: No such file or directory");
    fs::create_directory(f.directory / "closed");
    fs::permissions(f.directory / "closed", fs::perms::owner_read | fs::perms::owner_exec);
    refused(f.directory / "closed/kernels.nqb", "/closed cannot be written: Permission denied");
    fs::permissions(f.directory / "closed", fs::perms::owner_all);
}

TEST_CASE("a bundle that cannot be written in the end leaves the summary, and its JSON") {
    const CacheFixture f;
    const std::string directory = f.directory / "image", bundle = directory + "/kernels.nqb";
    fs::create_directory(directory);
    const std::vector<std::string> arguments{"warmup", "--hidden", many_lengths(), "--arch", "sm_90", "--format", "nvfp4",
                                             "--bundle", bundle, "--json"};
    const ToolResult result = meet_tool(arguments, f.settings(), "", [&](pid_t) { fs::remove(directory); });
    REQUIRE(result.exit_code == 3);
    const auto json = result.json();
    CHECK(json["kernels"] == json["planned"]);
    CHECK(json["bundle"].is_null());
    CHECK(json["bundle_error"].get<std::string>().find(directory) != std::string::npos);
    CHECK(result.err.find("bundle " + bundle + " not written: ") != std::string::npos);
}

TEST_CASE("two warm-ups of one bundle at a time: it has the kernels of both") {
    const CacheFixture f;
    const std::string bundle = f.directory / "kernels.nqb";
    const auto arguments = [&](const std::string& lengths) {
        return std::vector<std::string>{"warmup", "--hidden", lengths, "--arch", "sm_90", "--format", "nvfp4",
                                        "--bundle", bundle, "--json"};
    };
    ToolResult second;
    // The first has begun, and waits for its reader, while the second does all of its work.
    const ToolResult first = meet_tool(arguments(many_lengths()), f.settings(), "", [&](pid_t) { second = f.run(arguments("4096")); });
    CHECK(first.exit_code == 0);
    CHECK(second.exit_code == 0);
    const std::size_t added = second.json()["bundle"]["kernels"], all = first.json()["bundle"]["kernels"];
    CHECK(first.json()["bundle"]["kept"] == added);
    CHECK(all == first.json()["kernels"].get<std::size_t>() + added);
    CHECK(f.cache({"list", "--bundle", bundle}).json()["entries"].size() == all);
    CHECK_FALSE(fs::exists(bundle + ".lock"));
}

TEST_CASE("a bundle that another process is writing is waited for") {
    const CacheFixture f;
    const std::string bundle = f.directory / "kernels.nqb";
    const std::vector<std::string> arguments{"warmup", "--hidden", "64", "--arch", "sm_90", "--bundle", bundle};
    std::optional<nq::FileLock> lock(nq::FileLock::try_acquire(nq::system_files(), bundle + ".lock", 0600));
    REQUIRE(lock->status() == nq::FileLock::Status::held);
    const ToolResult result = meet_tool(arguments, f.settings(), "waiting for process " + std::to_string(::getpid()), [&](pid_t) {
        CHECK_FALSE(fs::exists(bundle));
        lock.reset();
    });
    CHECK(result.exit_code == 0);
    CHECK(fs::exists(bundle));
    // Who does not want to wait interrupts it.
    lock.emplace(nq::FileLock::try_acquire(nq::system_files(), bundle + ".lock", 0600));
    const ToolResult stopped = meet_tool(arguments, f.settings(), "waiting for process ", [](pid_t child) { REQUIRE(kill(child, SIGINT) == 0); });
    CHECK(stopped.exit_code == 3);
    CHECK(stopped.out.find("is writing " + bundle) != std::string::npos);
}

TEST_CASE("a bundle of other kernel sources is not used: doctor and the miss say so, and a warm-up leaves them out") {
    const Fleet fleet;
    fleet.record();
    fleet.build();
    const auto doctor = [&] {
        std::vector<std::string> findings;
        const auto report = run_tool({"doctor", "--json"}, fleet.serving(fleet.bundle)).json();
        for (const auto& finding : report["findings"]) {
            if (finding["topic"] == "layer") findings.push_back(finding["severity"].get<std::string>() + ": " + finding["text"].get<std::string>());
        }
        REQUIRE(findings.size() == 1);
        return findings.front();
    };
    const std::size_t kernels = fleet.builder.cache({"list", "--bundle", fleet.bundle}).json()["entries"].size();
    const std::string counted = "bundle " + fleet.bundle + ", " + std::to_string(kernels) + " entries";
    CHECK(doctor() == "ok: " + counted);
    make_foreign(fleet.bundle, 1);
    CHECK(doctor() == "warning: " + counted + ", 1 of them of other kernel sources than this library has: never used");
    CHECK(fleet.builder.run({"warmup", "--hidden", "128", "--arch", "sm_90", "--bundle", fleet.bundle, "--json"}).json()["bundle"]["dropped"] == 1);
    CHECK(doctor().starts_with("ok: "));

    fs::remove(fleet.bundle);
    fleet.build();
    make_foreign(fleet.bundle, kernels);
    CHECK(doctor() == "problem: " + counted + ", all of other kernel sources than this library has: never used");
    CHECK(message_of(fleet.serve("nvfp4", "swizzled")).find("was made from other kernel sources than this library has") != std::string::npos);
    fleet.build();
    CHECK(doctor() == "ok: " + counted);
    CHECK(fleet.serve("nvfp4", "swizzled").exit_code == 0);

    Blob bytes = read(fleet.bundle);
    bytes[bytes.size() - 64] ^= 1;  // in the last entry
    save(fleet.bundle, bytes);
    CHECK(doctor() == "warning: " + counted + ", 1 of them bad");
}

TEST_CASE("a directory of NORMQUANT_BUNDLES may keep kernels of other versions, beside some of this one") {
    const CacheFixture f;
    const std::size_t kernels = f.warm("64", "sm_90");
    const auto set_headers = [&](std::size_t count) {
        for (const auto& entry : f.entries()) {
            if (count-- == 0) return;
            CacheFixture::set_metadata(entry["path"], R"({"request":{"headers":"of another version"}})");
        }
    };
    const auto layer = [&](const std::string& severity) {
        const auto report = f.run({"doctor", "--json"}, {"NORMQUANT_BUNDLES=" + f.root}).json();
        for (const auto& finding : report["findings"]) {
            if (finding["topic"] == "layer") return finding["severity"] == severity;
        }
        return false;
    };
    CHECK(layer("ok"));
    set_headers(1);
    CHECK(layer("ok"));
    set_headers(kernels);
    CHECK(layer("problem"));
}

TEST_CASE("the command that adds a kernel can be pasted, whatever the bundle is called") {
    Fleet fleet;
    fleet.bundle = fleet.directory / "it's a bundle.nqb";
    fleet.record();
    fleet.build();
    const std::string command = command_in(message_of(fleet.serve("mxfp4", "swizzled")));
    INFO(command);
    const std::vector<std::string> words = words_of_shell(command);
    REQUIRE_FALSE(words.empty());
    CHECK(words.back() == fleet.bundle);
    CHECK(fleet.builder.run(words).exit_code == 0);
    CHECK(fleet.serve("mxfp4", "swizzled").exit_code == 0);
}

TEST_CASE("another user serves from a bundle that was moved to a read-only place", "[privileged]") {
    if (::geteuid() != 0) return skip("only root can become another user");
    constexpr uid_t kNobody = 65534;
    const Fleet fleet;
    fleet.record();
    fleet.build();
    const std::string image = fleet.directory / "image";
    fs::create_directory(image);
    fs::rename(fleet.bundle, image + "/moved.nqb");
    fs::copy_file(NORMQUANT_FAKE_GPU, image + "/libcuda.so");
    const fs::perms read_only = fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read;
    const fs::perms enter = fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec;
    fs::permissions(image + "/moved.nqb", read_only);
    fs::permissions(image + "/libcuda.so", read_only | enter);
    fs::permissions(image, read_only | enter);
    fs::permissions(fleet.directory.path(), read_only | enter | fs::perms::owner_write);
    fs::create_directory(fleet.directory / "out");
    REQUIRE(::chown((fleet.directory / "out").c_str(), kNobody, kNobody) == 0);

    std::vector<std::string> settings = fleet.serving(image + "/moved.nqb");
    settings.push_back("NORMQUANT_LIBCUDA=" + image + "/libcuda.so");
    for (const auto& [format, layout] : {std::pair{"nvfp4", "swizzled"}, std::pair{"mxfp4", "linear"}}) {
        const ToolResult served = run_tool(Invocation{.arguments = fleet.engine(format, layout), .environment = settings, .user = kNobody});
        INFO(served.err);
        CHECK(served.exit_code == 0);
        CHECK(served.err.empty());
    }
    fs::permissions(image, fs::perms::owner_all);
}
