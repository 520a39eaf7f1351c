// normquant doctor: what it finds on a machine that is well, and on ones that are not; and that it changes nothing.
#include "cache_fixture.h"
#include "file_samples.h"
#include "support/catch.h"

#include <filesystem>
#include <set>

using namespace nq::test;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Doctor {
    int exit_code;
    nlohmann::json findings;

    // Is there a finding of this severity and topic with this text?
    bool has(const std::string& severity, const std::string& topic, const std::string& text = "") const {
        for (const auto& finding : findings) {
            if (finding["severity"] == severity && finding["topic"] == topic &&
                contains(finding["text"].get<std::string>(), text))
                return true;
        }
        return false;
    }
    std::size_t problems() const { return count("problem"); }
    std::size_t warnings() const { return count("warning"); }
    std::size_t count(const std::string& severity) const {
        std::size_t found = 0;
        for (const auto& finding : findings) found += finding["severity"] == severity ? 1 : 0;
        return found;
    }
};

// With the fakes, unless `more` says otherwise. Whatever is found: each has a severity, and a remedy if it needs one.
Doctor doctor(const CacheFixture& f, const std::vector<std::string>& more = {},
              const std::vector<std::string>& arguments = {}) {
    std::vector<std::string> settings{"NORMQUANT_LIBCUDA=" NORMQUANT_FAKE_GPU};
    settings.insert(settings.end(), more.begin(), more.end());
    std::vector<std::string> all{"doctor", "--json"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const ToolResult result = f.run(all, settings);
    const auto json = result.json();
    Doctor found{result.exit_code, json["findings"]};
    CHECK(json["problems"] == found.problems());
    CHECK(found.exit_code == (found.problems() == 0 ? 0 : 1));
    for (const auto& finding : found.findings) {
        INFO(finding.dump());
        const std::string severity = finding["severity"];
        CHECK((severity == "ok" || severity == "note" || severity == "warning" || severity == "problem"));
        if (severity == "warning" || severity == "problem") CHECK_FALSE(finding["remedy"].get<std::string>().empty());
        CHECK_FALSE(finding["text"].get<std::string>().empty());
    }
    return found;
}

}  // namespace

TEST_CASE("a machine that is well") {
    const CacheFixture f;
    f.warm("64", "sm_90");
    const Doctor found = doctor(f, {}, {"--compile"});
    CHECK(found.exit_code == 0);
    CHECK(found.has("ok", "cache directory", f.root + ", chosen by NORMQUANT_CACHE_DIR"));
    CHECK(found.has("ok", "permissions", f.root + ": owner "));
    CHECK(found.has("ok", "permissions", "mode 0700"));
    CHECK(found.has("ok", "writing"));
    CHECK(found.has("ok", "locks"));
    CHECK(found.has("ok", "size", " entries, "));
    CHECK(found.has("ok", "nvrtc", "13.0 at "));
    CHECK(found.has("ok", "driver", "for CUDA 13.0"));
    CHECK(found.has("ok", "device", "0: Fake GPU, compute capability 9.0, target sm_90, FP4 conversion by software"));
    CHECK(found.has("ok", "compile", "a kernel for sm_90 in "));
    CHECK(found.has("ok", "environment", "NORMQUANT_CACHE_DIR=" + f.root));
    const Doctor more = doctor(f, {"HOME=/home/somebody", "CUDA_VISIBLE_DEVICES=0,1"});
    CHECK(more.has("ok", "environment", "HOME=/home/somebody"));
    CHECK(more.has("ok", "environment", "CUDA_VISIBLE_DEVICES=0,1"));
    // What was tried left nothing behind.
    CHECK(std::filesystem::is_empty(f.root + "/v1/tmp"));
    CHECK(std::filesystem::is_empty(f.root + "/v1/locks"));

    const std::string text = f.run({"doctor"}, {"NORMQUANT_LIBCUDA=" NORMQUANT_FAKE_GPU}).out;
    CHECK(text.find("normquant doctor: 0 problems, ") == 0);
    CHECK(contains(text, "\n  ok       cache directory  " + f.root));
}

TEST_CASE("a cache that does not exist yet is not created") {
    const CacheFixture f;
    const Doctor found = doctor(f);
    CHECK(found.exit_code == 0);
    CHECK(found.has("note", "permissions", "does not exist yet"));
    CHECK_FALSE(found.has("ok", "writing"));
    CHECK_FALSE(std::filesystem::exists(f.root));

    const Doctor read_only = doctor(f, {"NORMQUANT_CACHE_READONLY=on"});
    CHECK(read_only.has("problem", "permissions", "does not exist, and is read-only"));
    const Doctor default_place = doctor(f, {"NORMQUANT_CACHE_DIR", "XDG_CACHE_HOME=" + f.directory.path()});
    CHECK(default_place.has("ok", "cache directory", f.directory / "normquant, chosen by XDG_CACHE_HOME"));
    CHECK_FALSE(std::filesystem::exists(f.directory / "normquant"));
    CHECK(doctor(f, {"NORMQUANT_CACHE_DIR="}).has("warning", "cache directory", "none: NORMQUANT_CACHE_DIR is empty"));
}

TEST_CASE("without a root and with JIT off, the layers are all there is") {
    const CacheFixture f;
    f.warm("64", "sm_90");
    const std::vector<std::string> serving{"NORMQUANT_CACHE_DIR=", "NORMQUANT_JIT=off"};
    const Doctor none = doctor(f, serving);
    CHECK(none.problems() == 1);
    CHECK(none.has("problem", "cache directory", "NORMQUANT_BUNDLES names nothing"));
    const Doctor layers = doctor(f, {serving[0], serving[1], "NORMQUANT_BUNDLES=" + f.root});
    CHECK(layers.has("ok", "cache directory", "NORMQUANT_BUNDLES alone"));
    CHECK(layers.warnings() == 0);
    CHECK(layers.problems() == 0);
}

TEST_CASE("a root that is not trusted, or no directory") {
    const CacheFixture f;
    f.warm("64", "sm_90");
    REQUIRE(chmod(f.root.c_str(), 0777) == 0);
    const Doctor open_to_all = doctor(f);
    CHECK(open_to_all.has("problem", "permissions", "can be written by others (mode 0777)"));
    CHECK_FALSE(open_to_all.has("ok", "writing"));
    CHECK(doctor(f, {"NORMQUANT_CACHE_SHARED=on"}).exit_code == 0);

    save(f.directory / "file", {'x'});
    const Doctor file = doctor(f, {"NORMQUANT_CACHE_DIR=" + (f.directory / "file")});
    CHECK(file.has("problem", "permissions", "is not a directory"));
    const Doctor below = doctor(f, {"NORMQUANT_CACHE_DIR=" + (f.directory / "file/cache")});
    CHECK(below.has("problem", "permissions", "cannot be created"));
    std::filesystem::create_directory_symlink(f.directory.path(), f.directory / "link");
    CHECK(doctor(f, {"NORMQUANT_CACHE_DIR=" + (f.directory / "link")}).has("problem", "permissions", "symbolic link"));
}

TEST_CASE("a root that is not written, or too full, or was damaged") {
    const CacheFixture f;
    f.warm("64", "sm_90");
    const Doctor read_only = doctor(f, {"NORMQUANT_CACHE_READONLY=on"});
    CHECK(read_only.exit_code == 0);
    CHECK(read_only.has("ok", "writing", "NORMQUANT_CACHE_READONLY is on"));
    CHECK(doctor(f, {"NORMQUANT_CACHE_SIZE=1"}).has("warning", "size"));

    save(f.root + "/v1/tmp/1-00.nqc", {'x'});
    f.set_age(f.root + "/v1/tmp/1-00.nqc", 7200);
    const std::string path = f.entries()[0]["path"];
    save(path, {'x'});
    CHECK(f.cache({"verify", "--repair"}).exit_code == 0);
    const Doctor damaged = doctor(f);
    CHECK(damaged.exit_code == 0);
    CHECK(damaged.has("note", "set aside", "1 bad entries"));
    CHECK(damaged.has("note", "leftovers", "1 files"));
}

TEST_CASE("every directory of the root is looked at") {
    const CacheFixture f;
    f.warm("64", "sm_90");
    const std::string shard = std::filesystem::path(f.entries()[0]["path"].get<std::string>()).parent_path();
    const auto mode = [](const std::string& path, mode_t value) { REQUIRE(chmod(path.c_str(), value) == 0); };
    for (const std::string& path :
         {f.root + "/v1", f.root + "/v1/tmp", f.root + "/v1/locks", f.root + "/v1/sm_90", shard}) {
        INFO(path);
        mode(path, 0500);
        const Doctor closed = doctor(f);
        CHECK(closed.problems() == 1);
        CHECK(
            closed.has("problem", "permissions", "kernels cannot be read, or stored: " + path + ": Permission denied"));
        CHECK_FALSE(closed.has("ok", "writing"));
        // Where nothing is written, nothing is wrong.
        CHECK(doctor(f, {"NORMQUANT_CACHE_READONLY=on"}).exit_code == 0);
        mode(path, 0300);
        CHECK(doctor(f).has("problem", "permissions", path + ": Permission denied"));
        mode(path, 0700);
        CHECK(doctor(f).exit_code == 0);

        std::filesystem::rename(path, f.directory / "aside");
        save(path, {'x'});
        CHECK(doctor(f).has("problem", "permissions",
                            path == f.root + "/v1" ? "is not a directory" : path + ": not a directory"));
        std::filesystem::remove(path);
        CHECK(doctor(f).exit_code == 0);  // it will be made again
        std::filesystem::rename(f.directory / "aside", path);
    }
    for (const std::string& path : {f.root + "/v1", f.root + "/v1/sm_90", shard}) {
        mode(path, 0300);
        CHECK(doctor(f, {"NORMQUANT_CACHE_READONLY=on"})
                  .has("problem", "permissions", "kernels cannot be read: " + path));
        CHECK(doctor(f, {"NORMQUANT_BUNDLES=" + f.root, "NORMQUANT_CACHE_DIR="})
                  .has("problem", "permissions", "kernels cannot be read: " + path));
        mode(path, 0700);
    }
    mode(f.root, 0500);
    CHECK(doctor(f).exit_code == 0);  // nothing is made in it any more
    std::filesystem::rename(f.root + "/v1", f.directory / "aside");
    mode(f.root, 0500);
    CHECK(doctor(f).has("problem", "permissions", f.root + ": Permission denied"));
    mode(f.root, 0700);

    const std::string above = f.directory / "above";
    std::filesystem::create_directories(above);
    mode(above, 0600);
    CHECK(doctor(f, {"NORMQUANT_CACHE_DIR=" + above + "/cache"})
              .has("problem", "permissions", above + "/cache cannot be looked at: Permission denied"));
    mode(above, 0700);
}

TEST_CASE("many closed directories are one problem, with one remedy") {
    const CacheFixture f;
    f.warm("64", "sm_90");
    for (const char* shard : {"x0", "x1", "x2", "x3", "x4"}) save(f.root + "/v1/sm_90/" + shard, {'x'});
    const Doctor found = doctor(f);
    CHECK(found.problems() == 1);
    CHECK(found.has("problem", "permissions", "/x2: not a directory; and 2 more"));
}

TEST_CASE("--cache-dir: the root to look at") {
    const CacheFixture f;
    f.warm("64", "sm_90");
    const std::vector<std::string> elsewhere{"NORMQUANT_CACHE_DIR=" + (f.directory / "elsewhere")};
    const Doctor found = doctor(f, elsewhere, {"--cache-dir", f.root});
    CHECK(found.has("ok", "cache directory", f.root + ", chosen by --cache-dir"));
    CHECK(found.has("ok", "permissions", f.root + ": owner "));
    CHECK(doctor(f, elsewhere).has("note", "permissions", "elsewhere does not exist yet"));
    CHECK(doctor(f, {}, {"--cache-dir", f.directory / "none"}).has("note", "permissions", "none does not exist yet"));
}

TEST_CASE("layers: each is looked at") {
    const CacheFixture f;
    const std::size_t kernels = f.warm("64", "sm_90");
    const std::string bundle = f.directory / "kernels.nqb";
    REQUIRE(f.cache({"export", bundle}).exit_code == 0);
    const std::string count = ", " + std::to_string(kernels) + " entries";
    const Doctor good = doctor(f, {"NORMQUANT_BUNDLES=" + bundle + ":" + f.root});
    CHECK(good.exit_code == 0);
    CHECK(good.has("ok", "layer", "bundle " + bundle + count));
    CHECK(good.has("ok", "layer", "directory " + f.root + count));
    save(f.directory / "text", {'h', 'i'});
    CHECK(
        doctor(f, {"NORMQUANT_BUNDLES=" + (f.directory / "text")}).has("problem", "layer", "shorter than the header"));
    CHECK(doctor(f, {"NORMQUANT_BUNDLES=/nonexistent/x"}).has("problem", "layer", "does not exist"));
    REQUIRE(chmod(bundle.c_str(), 0666) == 0);
    CHECK(doctor(f, {"NORMQUANT_BUNDLES=" + bundle}).has("problem", "layer", "can be written by others"));
}

TEST_CASE("variables: each that is wrong is a problem, and the others still count") {
    const CacheFixture f;
    const Doctor found = doctor(f, {"NORMQUANT_JIT=maybe", "NORMQUANT_CACHE_SIZE=big", "NORMQUANT_LOG=loud",
                                    "NORMQUANT_CACHE_DRI=/x", "NVRTC_APPEND_FLAGS=-G", "NORMQUANT_LIBRARY=/x/libnormquant.so"});
    CHECK(found.exit_code == 1);
    CHECK(found.has("ok", "environment", "NORMQUANT_LIBRARY=/x/libnormquant.so"));
    CHECK(found.problems() == 3);
    CHECK(found.has("problem", "environment", "NORMQUANT_JIT='maybe'"));
    CHECK(found.has("problem", "environment", "NORMQUANT_CACHE_SIZE='big'"));
    CHECK(found.has("problem", "environment", "NORMQUANT_LOG='loud'"));
    CHECK(found.has("warning", "environment", "NORMQUANT_CACHE_DRI is not a variable"));
    CHECK(found.has("warning", "environment", "NVRTC_APPEND_FLAGS=-G"));
    CHECK(found.has("ok", "cache directory", f.root));
}

TEST_CASE("without NVRTC, without a driver") {
    const CacheFixture f;
    const std::string no_nvrtc = "NORMQUANT_NVRTC=/nonexistent/libnvrtc.so",
                      no_driver = "NORMQUANT_LIBCUDA=/nonexistent/x";
    const Doctor neither = doctor(f, {no_nvrtc, no_driver}, {"--compile"});
    CHECK(neither.exit_code == 1);
    CHECK(neither.has("problem", "nvrtc", "/nonexistent/libnvrtc.so"));
    CHECK(neither.has("problem", "driver", "/nonexistent/x"));
    CHECK(neither.has("problem", "compile", "not possible without NVRTC"));
    std::set<std::string> remedies;
    for (const auto& finding : neither.findings) {
        if (finding["severity"] == "problem") CHECK(remedies.insert(finding["remedy"]).second);
    }
    CHECK(doctor(f, {"NORMQUANT_JIT=off"}, {"--compile"}).has("problem", "compile", "NORMQUANT_JIT is off"));
    const Doctor cached_only = doctor(f, {no_nvrtc, "NORMQUANT_JIT=off"});
    CHECK(cached_only.exit_code == 0);
    CHECK(cached_only.has("ok", "nvrtc", "NORMQUANT_JIT is off"));
    CHECK(cached_only.has("ok", "device", "target sm_90"));
    // A libnvrtc that is none.
    save(f.directory / "libnvrtc.so.13", {'h', 'i'});
    CHECK(doctor(f, {"NORMQUANT_NVRTC=" + (f.directory / "libnvrtc.so.13")}).has("problem", "nvrtc", "libnvrtc.so.13"));
}
