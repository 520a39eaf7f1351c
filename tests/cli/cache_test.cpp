// normquant cache: every command, what it prints, changes and refuses.
#include "cache/lock.h"
#include "cache_fixture.h"
#include "file_samples.h"
#include "support/catch.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

using namespace nq::test;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> column(const nlohmann::json& entries, const char* name) {
    std::vector<std::string> values;
    for (const auto& entry : entries) values.push_back(entry[name].get<std::string>());
    return values;
}

void damage(const std::string& path) {
    Blob bytes = read(path);
    bytes[bytes.size() / 2] ^= 1;
    save(path, bytes);
}

// Bytes of every entry file, by name below the root.
std::map<std::string, Blob> files_below(const std::string& root) {
    std::map<std::string, Blob> files;
    for (const auto& file : std::filesystem::recursive_directory_iterator(root)) {
        if (file.path().extension() == ".nqc")
            files[std::filesystem::relative(file.path(), root).string()] = read(file.path().string());
    }
    return files;
}

}  // namespace

TEST_CASE("list: one row an entry, with what is needed to find it again") {
    const CacheFixture f;
    const std::size_t kernels = f.warm("64", "sm_90");
    const auto listed = f.cache({"list"});
    REQUIRE(listed.exit_code == 0);
    const auto json = listed.json();
    CHECK(json["root"] == f.root);
    REQUIRE(json["entries"].size() == kernels);
    std::uint64_t bytes = 0;
    for (const auto& entry : json["entries"]) {
        CHECK(entry["key"].get<std::string>().size() == 32);
        CHECK(entry["compiler"].get<std::string>().size() == 32);
        CHECK(entry["arch"] == "sm_90");
        CHECK(entry["place"] == "root");
        CHECK(contains(entry["problem"].get<std::string>(), " hidden=64 "));
        CHECK(contains(entry["variant"].get<std::string>(), "threads="));
        CHECK(std::filesystem::file_size(entry["path"].get<std::string>()) == entry["bytes"]);
        CHECK(entry["age_seconds"].get<int>() < 3600);
        bytes += entry["bytes"].get<std::uint64_t>();
    }
    CHECK(json["bytes"] == bytes);
    const std::string text = f.run({"cache", "list"}).out;
    CHECK(text.find("KEY ") == 0);
    CHECK(contains(text, json["entries"][0]["key"].get<std::string>()));
    CHECK(contains(text, std::to_string(kernels) + " entries, "));
}

TEST_CASE("list: filters and orders") {
    const CacheFixture f;
    f.warm("64,128", "sm_90,sm_80");
    const auto all = f.entries();
    const std::string old = all[0]["path"].get<std::string>();
    f.set_age(old, 3 * 86400);

    const auto ampere = f.cache({"list", "--arch", "sm_80"}).json();
    CHECK_FALSE(ampere["entries"].empty());
    for (const auto& entry : ampere["entries"]) CHECK(entry["arch"] == "sm_80");
    const auto wide = f.cache({"list", "--hidden", "128"}).json()["entries"];
    CHECK(wide.size() == all.size() / 2);
    for (const auto& entry : wide) CHECK(contains(entry["problem"].get<std::string>(), " hidden=128 "));
    const auto older = f.cache({"list", "--older-than", "2d"}).json()["entries"];
    REQUIRE(older.size() == 1);
    CHECK(older[0]["path"] == old);
    CHECK(f.cache({"list", "--newer-than", "48h"}).json()["entries"].size() == all.size() - 1);
    CHECK(contains(f.run({"cache", "list", "--older-than", "2d"}).out, " 3d  "));
    CHECK(f.cache({"list", "--arch", "sm_120f"}).json()["entries"].empty());
    const auto listed = [&](const char* option, const char* values) {
        return f.cache({"list", option, values}).json()["entries"].size();
    };
    CHECK(listed("--hidden", "64,128") == all.size());
    CHECK(listed("--hidden", "80,128") == all.size() / 2);
    CHECK(listed("--arch", "sm_80,sm_90") == all.size());
    CHECK(listed("--arch", "sm_120f,sm_90") == listed("--arch", "sm_90"));

    const auto by_age = f.cache({"list", "--sort", "age"}).json()["entries"];
    CHECK(by_age.back()["path"] == old);
    CHECK(f.cache({"list", "--sort", "age", "--reverse"}).json()["entries"][0]["path"] == old);
    auto keys = column(all, "key");
    std::sort(keys.begin(), keys.end());
    CHECK(column(f.cache({"list", "--sort", "key"}).json()["entries"], "key") == keys);
    const auto by_size = f.cache({"list", "--sort", "size"}).json()["entries"];
    for (std::size_t i = 1; i < by_size.size(); ++i)
        CHECK(by_size[i - 1]["bytes"].get<int>() <= by_size[i]["bytes"].get<int>());
    const auto problems = column(f.cache({"list", "--sort", "problem"}).json()["entries"], "problem");
    CHECK(std::is_sorted(problems.begin(), problems.end()));
    const auto archs = column(all, "arch");
    CHECK(std::is_sorted(archs.begin(), archs.end()));
}

TEST_CASE("list: what is refused") {
    const CacheFixture f;
    const auto refused = [&](const std::vector<std::string>& more, const std::string& message) {
        std::vector<std::string> arguments{"list"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        const ToolResult result = f.cache(arguments);
        INFO(result.err);
        CHECK(result.exit_code == 2);
        CHECK(contains(result.json()["error"]["message"].get<std::string>(), message));
    };
    refused({"--older-than", "3"}, "--older-than '3' is not an age, such as 90s, 30m, 12h or 7d");
    refused({"--newer-than", "-1d"}, "--newer-than '-1d' is not an age");
    refused({"--older-than", "9999999d"}, "is not an age");
    refused({"--arch", "sm_91"}, "--arch: ");
    refused({"--arch", "sm_90,sm_91"}, "sm_91");
    refused({"--hidden", "8"}, "--hidden '8'");
    refused({"--hidden", "64,8"}, "--hidden '8'");
    refused({"--bundle", "x.nqb", "--cache-dir", "y"}, "--cache-dir");
    refused({"--sort", "name"}, "--sort 'name' is not accepted: choose one of age, size, arch, problem, key");
    refused({"--bundle", "/nonexistent/x.nqb", "--sort", "nam"}, "--sort 'nam'");
    CHECK(f.cache({"list", "--bundle", "/nonexistent/x.nqb"}).exit_code == 1);
}

TEST_CASE("without a cache directory there is nothing to look at; one that does not exist is empty and stays so") {
    const ToolResult none = run_tool({"cache", "list", "--json"}, {"NORMQUANT_CACHE_DIR="});
    CHECK(none.exit_code == 1);
    CHECK(contains(none.json()["error"]["message"].get<std::string>(), "no disk cache"));
    const CacheFixture f;
    for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{{"list"},
                                                                                         {"verify"},
                                                                                         {"verify", "--repair"},
                                                                                         {"stats"},
                                                                                         {"stats", "--reset"},
                                                                                         {"gc"},
                                                                                         {"clear", "--yes"},
                                                                                         {"path"}}) {
        const ToolResult result = f.cache(command);
        INFO(command[0] << ": " << result.err);
        CHECK(result.exit_code == 0);
        CHECK(result.json()["root"] == f.root);
    }
    CHECK(f.entries().empty());
    CHECK_FALSE(std::filesystem::exists(f.root));
}

TEST_CASE("show: by the beginning of a key, by path; every field") {
    const CacheFixture f;
    f.warm("64,128", "sm_90,sm_80");
    const auto entries = f.entries();
    const std::string key = entries[0]["key"];
    const ToolResult shown = f.cache({"show", key.substr(0, 12)});
    REQUIRE(shown.exit_code == 0);
    const auto entry = shown.json()["entries"][0];
    CHECK(entry["key"] == key);
    CHECK(entry["place"] == "root");
    CHECK(entry["source"].get<std::string>().find("xxh3:") == 0);
    CHECK(entry["cubin_bytes"].get<int>() > 64);
    const auto metadata = entry["metadata"];
    CHECK(metadata["request"]["problem"] == entry["problem"]);
    CHECK(metadata["plan"]["threads_per_row"].get<int>() > 0);
    CHECK(metadata["nvrtc"].is_string());
    const std::string brief = f.run({"cache", "show", key}).out;
    CHECK(contains(brief, "  registers "));
    CHECK_FALSE(contains(brief, "metadata."));
    const std::string text = f.run({"cache", "show", key, "--all"}).out;
    for (const char* label : {"metadata.request.headers", "metadata.plan.block_threads", "metadata.compiler.nvrtc",
                              "registers", "nvrtc_build", "source", "cubin_bytes"}) {
        CHECK(contains(text, std::string("  ") + label + " "));
    }
    CHECK(f.cache({"show", entry["path"]}).json()["entries"][0]["key"] == key);
    CHECK(f.cache({"show", "zz"}).exit_code == 1);
    std::string upper = key;
    for (char& c : upper) c = static_cast<char>(std::toupper(c));
    CHECK(column(f.cache({"show", upper}).json()["entries"], "path") == std::vector{entry["path"].get<std::string>()});
    // One digit begins two of 17 keys at the latest.
    f.warm("256,512,1024,2048,4096", "sm_90,sm_80");
    std::set<char> seen;
    for (const std::string& each : column(f.entries(), "key")) {
        if (seen.insert(each[0]).second) continue;
        const ToolResult ambiguous = f.cache({"show", each.substr(0, 1)});
        CHECK(ambiguous.exit_code == 2);
        CHECK(contains(ambiguous.err, "give more digits"));
        return;
    }
    FAIL("no two keys begin alike");
}

TEST_CASE("a bad entry is listed and shown as one, and left as it is") {
    const CacheFixture f;
    f.warm("64", "sm_90");
    const auto entry = f.entries()[0];
    const std::string path = entry["path"];
    damage(path);
    const Blob bytes = read(path);
    CHECK(contains(f.run({"cache", "list"}).out, "\nBAD "));
    CHECK(f.cache({"list"}).exit_code == 0);
    CHECK(f.cache({"list"}).json()["bad"] == 1);
    CHECK(contains(f.run({"cache", "list"}).out, ", 1 bad in "));
    for (const char* hidden : {"64", "80"}) {
        const auto listed = f.cache({"list", "--hidden", hidden}).json();
        CHECK(listed["bad"] == 1);
        CHECK(std::ranges::count(column(listed["entries"], "path"), path) == 1);
    }
    CHECK(f.cache({"list", "--arch", "sm_80"}).json()["bad"] == 0);
    const ToolResult shown = f.cache({"show", entry["key"]});
    CHECK(shown.exit_code == 1);
    CHECK(contains(shown.json()["entries"][0]["error"].get<std::string>(), "checksum"));
    CHECK(f.cache({"verify"}).exit_code == 1);
    CHECK(f.cache({"stats"}).exit_code == 0);
    CHECK(read(path) == bytes);
}

TEST_CASE("verify finds what is bad; --repair sets it aside, and a second run is clean") {
    const CacheFixture f;
    const std::size_t kernels = f.warm("64,128", "sm_90,sm_80");
    CHECK(f.cache({"verify"}).json()["sound"] == kernels);
    const auto entries = f.entries();
    damage(entries[0]["path"]);
    save(entries[1]["path"], {});
    std::filesystem::copy_file(entries[2]["path"].get<std::string>(), f.root + "/v1/sm_90/00.nqc");
    std::filesystem::create_directories(f.root + "/v1/sm_90/ff");
    std::filesystem::create_symlink(entries[2]["path"].get<std::string>(), f.root + "/v1/sm_90/ff/link.nqc");

    const auto found = f.cache({"verify"});
    CHECK(found.exit_code == 1);
    CHECK(found.json()["sound"] == kernels - 2);
    REQUIRE(found.json()["bad"].size() == 3);
    CHECK(found.json()["left"] == 3);

    const auto repaired = f.cache({"verify", "--repair"});
    INFO(repaired.out);
    CHECK(repaired.exit_code == 0);
    CHECK(repaired.json()["left"] == 0);
    REQUIRE(repaired.json()["bad"].size() == 3);
    const auto set_aside = repaired.json();  // named: a loop over a part of a temporary has lost the whole
    for (const auto& bad : set_aside["bad"]) {
        CHECK(bad["repaired"] == true);
        CHECK(contains(bad["repair"].get<std::string>(), "moved to " + f.root + "/v1/bad/"));
        CHECK_FALSE(std::filesystem::exists(std::filesystem::symlink_status(bad["path"].get<std::string>())));
    }
    CHECK(f.cache({"verify"}).exit_code == 0);
    CHECK(f.warm("64,128", "sm_90,sm_80") == kernels);
    CHECK(f.cache({"verify"}).json()["sound"] == kernels);

    // What cannot be moved is left, and said.
    std::filesystem::create_directories(f.root + "/v1/sm_90/ff/directory.nqc");
    const auto left = f.cache({"verify", "--repair"});
    CHECK(left.exit_code == 1);
    CHECK(left.json()["left"] == 1);
    CHECK(left.json()["bad"][0]["repaired"] == false);
}

TEST_CASE("explain: before and after a compile, from a bundle, and without a compiler") {
    const CacheFixture f;
    const std::vector<std::string> problem{"explain", "--hidden", "64", "--arch", "sm_90"};
    const ToolResult cold = f.cache(problem);
    REQUIRE(cold.exit_code == 0);
    CHECK_FALSE(std::filesystem::exists(f.root));
    const auto kernels = cold.json()["kernels"];
    REQUIRE(kernels.size() >= 1);
    for (const auto& kernel : kernels) {
        CHECK(kernel["source"]["place"] == "compile");
        CHECK(std::filesystem::equivalent(kernel["source"]["nvrtc"].get<std::string>(), NORMQUANT_FAKE_NVRTC));
        CHECK(kernel["fields"]["arch"] == "sm_90");
        CHECK(kernel["fields"]["source"].get<std::string>().find("xxh3:") == 0);
        CHECK(kernel["passed_over"].empty());
    }

    f.warm("64", "sm_90");
    const auto warm = f.cache(problem).json();
    const auto listed = column(f.entries(), "path");
    for (std::size_t i = 0; i < kernels.size(); ++i) {
        const auto kernel = warm["kernels"][i];
        CHECK(kernel["key"] == kernels[i]["key"]);
        CHECK(kernel["source"]["place"] == "root");
        CHECK(kernel["source"]["path"] == kernels[i]["path"]);
        CHECK(std::count(listed.begin(), listed.end(), kernel["path"].get<std::string>()) == 1);
    }
    CHECK(contains(f.run({"cache", "explain", "--hidden", "64", "--arch", "sm_90"}).out, "comes from    root "));

    // A bundle is asked first, and serves whoever asks.
    const std::string bundle = f.directory / "kernels.nqb";
    REQUIRE(f.cache({"export", bundle}).exit_code == 0);
    const std::string layers = "NORMQUANT_BUNDLES=" + bundle;
    CHECK(f.cache(problem, {layers}).json()["kernels"][0]["source"]["place"] == "bundle");
    CHECK(f.cache(problem, {layers, "NORMQUANT_CACHE_DIR=", "NORMQUANT_JIT=off"})
              .json()["kernels"][0]["source"]["place"] == "bundle");
    CHECK(f.cache(problem, {"NORMQUANT_BUNDLES=" + f.root, "NORMQUANT_CACHE_DIR="})
              .json()["kernels"][0]["source"]["place"] == "directory");
    const auto faulty = f.cache(problem, {"NORMQUANT_BUNDLES=/nonexistent/x.nqb"}).json();
    CHECK(faulty["not_used"].size() == 1);
    CHECK(faulty["kernels"][0]["source"]["place"] == "root");

    // The root serves any compiler's when there is none, and not another's when there is one.
    CHECK(f.cache(problem, {"NORMQUANT_NVRTC=/nonexistent/libnvrtc.so"}).json()["kernels"][0]["source"]["place"] ==
          "root");
    CHECK(f.cache(problem, {"NORMQUANT_JIT=off"}).json()["kernels"][0]["source"]["place"] == "root");
    CHECK(f.cache(problem, {"NVRTC_APPEND_FLAGS=-G"}).json()["kernels"][0]["source"]["place"] == "compile");
    const auto missing = f.cache({"explain", "--hidden", "128", "--arch", "sm_90"}, {"NORMQUANT_JIT=off"}).json();
    CHECK(missing["kernels"][0]["source"]["place"] == "none");
    CHECK(contains(missing["kernels"][0]["source"]["reason"].get<std::string>(), "NORMQUANT_JIT"));

    // A bad entry is passed over, said, and left as it is.
    const std::string path = kernels[0]["path"];
    damage(path);
    const auto bad = f.cache(problem).json()["kernels"][0];
    CHECK(bad["source"]["place"] == "compile");
    REQUIRE(bad["passed_over"].size() == 1);
    CHECK(contains(bad["passed_over"][0].get<std::string>(), "checksum"));
    CHECK(std::filesystem::exists(path));
}

TEST_CASE("explain --against: the fields that differ, and no other") {
    const CacheFixture f;
    f.warm("64", "sm_90");
    const auto explain = [&](const std::string& hidden, const std::string& entry,
                             const std::vector<std::string>& more = {}) {
        return f
            .cache({"explain", "--hidden", hidden, "--arch", "sm_90", "--variant", "throughput", "--against", entry},
                   more)
            .json()["kernels"][0]["against"][0]["differences"];
    };
    const std::string key = f.cache({"explain", "--hidden", "64", "--arch", "sm_90", "--variant", "throughput"})
                                .json()["kernels"][0]["key"];
    CHECK(explain("64", key).empty());

    const auto compiler = explain("64", key, {"NVRTC_APPEND_FLAGS=-G"});
    REQUIRE(compiler.size() == 1);
    CHECK(compiler[0]["group"] == "compiler");
    CHECK(compiler[0]["field"] == "environment");
    CHECK(compiler[0]["here"] == "NVRTC_APPEND_FLAGS=-G;");
    CHECK(compiler[0]["there"] == "");

    std::set<std::string> fields;
    for (const auto& difference : explain("80", key)) fields.insert(difference["field"].get<std::string>());
    CHECK(fields.count("problem") == 1);
    CHECK(fields.count("source") == 1);
    CHECK(fields.count("arch") == 0);
    CHECK(fields.count("headers") == 0);
    CHECK(fields.count("nvrtc") == 0);

    CHECK(contains(f.run({"cache", "explain", "--hidden", "64", "--arch", "sm_90", "--against", key}).out,
                   "no field differs"));
    CHECK(f.cache({"explain", "--hidden", "64", "--arch", "sm_90", "--against", "zz"}).exit_code == 1);
}

TEST_CASE("explain: what is refused") {
    const CacheFixture f;
    CHECK(f.cache({"explain"}).exit_code == 2);
    CHECK(f.cache({"explain", "--hidden", "64"}).exit_code == 2);
    CHECK(f.cache({"explain", "--hidden", "20", "--arch", "sm_90"}).exit_code == 2);
    const ToolResult variant = f.cache({"explain", "--hidden", "64", "--arch", "sm_90", "--variant", "fast"});
    CHECK(variant.exit_code == 2);
    CHECK(contains(variant.err, "--variant 'fast' does not exist here: choose one of throughput"));
}

TEST_CASE("extract writes the cubin, and nothing that is not asked for") {
    const CacheFixture f;
    f.warm("64", "sm_90");
    const auto entry = f.entries()[0];
    const std::string key = entry["key"], out = f.directory / "kernel.cubin";
    const ToolResult done = f.cache({"extract", key, "-o", out});
    INFO(done.err);
    REQUIRE(done.exit_code == 0);
    const Blob cubin = read(out);
    CHECK(cubin.size() == entry["cubin_bytes"]);
    CHECK(std::string(cubin.begin(), cubin.begin() + 4) ==
          "\x7f"
          "ELF");
    const Blob file = read(entry["path"]);
    CHECK(std::search(file.begin(), file.end(), cubin.begin(), cubin.end()) != file.end());
    const std::string piped = f.run({"cache", "extract", key, "-o", "-"}).out;
    CHECK(Blob(piped.begin(), piped.end()) == cubin);

    save(out, {'x'});
    const ToolResult kept = f.cache({"extract", key, "-o", out});
    CHECK(kept.exit_code == 1);
    CHECK(contains(kept.err, "exists: --force replaces it"));
    CHECK(read(out) == Blob{'x'});
    CHECK(f.cache({"extract", key, "-o", out, "--force"}).exit_code == 0);
    CHECK(read(out) == cubin);
    CHECK(f.cache({"extract", key}).exit_code == 2);
    CHECK(f.cache({"extract", key, "-o", "/nonexistent/x"}).exit_code == 1);

    // Two compilers: one has to be named.
    f.warm("64", "sm_90", {"NVRTC_APPEND_FLAGS=-G"});
    const ToolResult two = f.cache({"extract", key, "-o", f.directory / "two"});
    CHECK(two.exit_code == 2);
    CHECK(contains(two.err, "several compilers"));
    const std::string id = key + "-" + entry["compiler"].get<std::string>();
    CHECK(f.cache({"extract", id, "-o", f.directory / "two"}).exit_code == 0);
    CHECK(f.cache({"extract", entry["path"], "-o", f.directory / "three"}).exit_code == 0);

    damage(entry["path"]);
    CHECK(f.cache({"extract", entry["path"], "-o", f.directory / "four"}).exit_code == 1);
    CHECK_FALSE(std::filesystem::exists(f.directory / "four"));
}

TEST_CASE("export and import: the same files in another root, of every compiler") {
    const CacheFixture f;
    const std::size_t kernels = f.warm("64,128", "sm_90,sm_80");
    CHECK(f.warm("64", "sm_90", {"NVRTC_APPEND_FLAGS=-G"}) > 0);
    const auto originals = files_below(f.root);
    REQUIRE(originals.size() > kernels);
    const std::string bundle = f.directory / "kernels.nqb";
    const auto exported = f.cache({"export", bundle});
    REQUIRE(exported.exit_code == 0);
    CHECK(exported.json()["exported"] == originals.size());
    CHECK(exported.json()["bytes"] == std::filesystem::file_size(bundle));
    CHECK(f.cache({"list", "--bundle", bundle}).json()["entries"].size() == originals.size());

    const std::string other = f.directory / "other";
    const std::string there = "NORMQUANT_CACHE_DIR=" + other;
    const auto imported = f.cache({"import", bundle}, {there});
    REQUIRE(imported.exit_code == 0);
    CHECK(imported.json()["imported"] == originals.size());
    CHECK(files_below(other) == originals);
    const auto again = f.cache({"import", bundle}, {there}).json();
    CHECK(again["imported"] == 0);
    CHECK(again["present"] == originals.size());

    // A part of them; and what is in a layer already is not there twice.
    const auto some = f.cache({"export", f.directory / "some.nqb", "--arch", "sm_80", "--hidden", "128"});
    CHECK(some.exit_code == 0);
    const auto few = f.cache({"list", "--bundle", f.directory / "some.nqb"}).json();
    CHECK_FALSE(few["entries"].empty());
    for (const auto& entry : few["entries"]) {
        CHECK(entry["arch"] == "sm_80");
        CHECK(contains(entry["problem"].get<std::string>(), " hidden=128 "));
    }
    const auto layered = f.cache({"export", f.directory / "all.nqb"}, {"NORMQUANT_BUNDLES=" + bundle});
    CHECK(layered.json()["exported"] == originals.size());
    CHECK(read(f.directory / "all.nqb") == read(bundle));
    const ToolResult nothing = f.cache({"export", f.directory / "none.nqb", "--arch", "sm_120f"});
    CHECK(nothing.exit_code == 1);
    CHECK_FALSE(std::filesystem::exists(f.directory / "none.nqb"));
}

TEST_CASE("export and import: bad entries are left out, and said") {
    const CacheFixture f;
    const std::size_t kernels = f.warm("64,128", "sm_90");
    const std::string bundle = f.directory / "kernels.nqb";
    REQUIRE(f.cache({"export", bundle}).exit_code == 0);
    damage(f.entries()[0]["path"]);
    // A bad one does not tell its problem, so that it may have been meant.
    for (const std::vector<std::string>& filter : std::vector<std::vector<std::string>>{
             {}, {"--hidden", "64,128"}, {"--hidden", "64"}, {"--hidden", "128"}, {"--arch", "sm_90"}}) {
        std::vector<std::string> command{"export", f.directory / "less.nqb"};
        command.insert(command.end(), filter.begin(), filter.end());
        const auto exported = f.cache(command);
        CHECK(exported.exit_code == 3);
        CHECK(exported.json()["left_out"].size() == 1);
        CHECK(contains(exported.err, "left out " + f.root));
        CHECK(contains(exported.err, "checksum"));
    }
    CHECK(f.cache({"export", f.directory / "less.nqb"}).json()["exported"] == kernels - 1);
    CHECK(contains(f.run({"cache", "export", f.directory / "less.nqb"}).out, ", 1 bad left out\n"));
    const auto none_left = f.cache({"export", f.directory / "none.nqb", "--hidden", "80"});
    CHECK(none_left.exit_code == 1);
    CHECK(contains(none_left.err, "nothing to export in " + f.root + ", 1 bad left out"));
    CHECK_FALSE(std::filesystem::exists(f.directory / "none.nqb"));
    f.warm("64", "sm_80");
    CHECK(f.cache({"export", f.directory / "sound.nqb", "--arch", "sm_80"}).exit_code == 0);

    Blob bytes = read(bundle);
    bytes[bytes.size() - 40] ^= 1;  // within the last entry
    save(f.directory / "bad.nqb", bytes);
    CHECK(contains(f.run({"cache", "list", "--bundle", f.directory / "bad.nqb"}).out, "BAD "));
    const std::string there = "NORMQUANT_CACHE_DIR=" + (f.directory / "other");
    const auto imported = f.cache({"import", f.directory / "bad.nqb"}, {there});
    CHECK(imported.exit_code == 3);
    CHECK(imported.json()["imported"] == kernels - 1);
    CHECK(imported.json()["bad"] == 1);
    CHECK(f.cache({"verify"}, {there}).exit_code == 0);
    const auto layer = f.cache({"verify"}, {there, "NORMQUANT_BUNDLES=" + (f.directory / "bad.nqb")});
    CHECK(layer.exit_code == 1);
    CHECK(layer.json()["bad"][0]["place"] == "bundle");

    bytes[20] ^= 1;  // in the header
    save(f.directory / "bad.nqb", bytes);
    CHECK(f.cache({"import", f.directory / "bad.nqb"}, {there}).exit_code == 2);
    CHECK(f.cache({"import", f.directory / "none.nqb"}, {there}).exit_code == 1);
    REQUIRE(chmod(bundle.c_str(), 0666) == 0);
    const ToolResult open_to_all = f.cache({"import", bundle}, {there});
    CHECK(open_to_all.exit_code == 1);
    CHECK(contains(open_to_all.err, "can be written by others"));
    CHECK(f.cache({"import", bundle}, {there, "NORMQUANT_CACHE_SHARED=on"}).exit_code == 0);
}

TEST_CASE("gc removes by age and by size, the oldest first") {
    const CacheFixture f;
    const std::size_t kernels = f.warm("64,128", "sm_90,sm_80");
    const auto entries = f.entries();
    f.set_age(entries[0]["path"], 40 * 86400);
    f.set_age(entries[1]["path"], 2 * 86400);
    const auto unlimited = f.cache({"gc"});
    CHECK(unlimited.exit_code == 0);
    CHECK(unlimited.json()["removed_entries"] == 0);
    const auto aged = f.cache({"gc", "--max-age", "30d"}).json();
    CHECK(aged["removed_entries"] == 1);
    CHECK(aged["left_entries"] == kernels - 1);
    CHECK_FALSE(std::filesystem::exists(entries[0]["path"].get<std::string>()));

    const std::string limit = std::to_string(aged["left_bytes"].get<std::uint64_t>() - 1);
    const auto sized = f.cache({"gc", "--max-size", limit}).json();
    CHECK(sized["removed_entries"].get<int>() >= 1);
    CHECK(sized["left_bytes"].get<std::uint64_t>() <= aged["left_bytes"].get<std::uint64_t>() / 10 * 9);
    CHECK_FALSE(std::filesystem::exists(entries[1]["path"].get<std::string>()));
    CHECK(f.entries().size() == sized["left_entries"]);
    // The limit of the environment.
    CHECK(f.cache({"gc"}, {"NORMQUANT_CACHE_SIZE=1"}).json()["left_entries"] == 0);

    for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{
             {"--max-size", "0"}, {"--max-size", "1.5G"}, {"--max-age", "0d"}, {"--max-age", "week"}}) {
        CHECK(f.cache({"gc", bad[0], bad[1]}).exit_code == 2);
    }
}

TEST_CASE("clear asks, and with --yes removes what the cache has made and nothing else") {
    const CacheFixture f;
    const std::size_t kernels = f.warm("64", "sm_90,sm_80");
    save(f.root + "/v1/sm_90/notes.txt", {'x'});
    const ToolResult asked = f.cache({"clear"});
    CHECK(asked.exit_code == 2);
    CHECK(contains(asked.err, "--yes"));
    const ToolResult declined = run_tool({"cache", "clear"}, f.settings(), "n\n");
    CHECK(declined.exit_code == 1);
    CHECK(contains(declined.err, "Remove " + std::to_string(kernels) + " entries, "));
    CHECK(contains(declined.err, "nothing was removed"));
    CHECK(f.entries().size() == kernels);
    const ToolResult agreed = run_tool({"cache", "clear", "--json"}, f.settings(), "y\n");
    CHECK(agreed.exit_code == 0);
    CHECK(agreed.json()["removed_entries"] == kernels);
    CHECK(f.entries().empty());
    CHECK(f.warm("64", "sm_90,sm_80") == kernels);
    const ToolResult done = f.cache({"clear", "--yes"});
    CHECK(done.exit_code == 0);
    CHECK(done.json()["removed_entries"] == kernels);
    CHECK(f.entries().empty());
    CHECK(std::filesystem::exists(f.root + "/v1/sm_90/notes.txt"));
    CHECK_FALSE(std::filesystem::exists(f.root + "/v1/sm_80"));
    CHECK(f.cache({"stats"}).json()["counters"]["compiles"] == 0);
}

TEST_CASE("stats: sums over processes, and what is there") {
    const CacheFixture f;
    const std::size_t kernels = f.warm("64", "sm_90,sm_80");
    REQUIRE(f.warm("64,128", "sm_90,sm_80") == 2 * kernels);
    const ToolResult result = f.cache({"stats"});
    REQUIRE(result.exit_code == 0);
    const auto json = result.json();
    CHECK(json["counters"]["compiles"] == 2 * kernels);
    CHECK(json["counters"]["misses"] == 2 * kernels);
    CHECK(json["counters"]["disk_hits"] == kernels);
    CHECK(json["counters"]["stored_entries"] == 2 * kernels);
    CHECK(json["counters"]["compile_ns"].get<std::uint64_t>() > 0);
    CHECK(json["counters"].size() == 17);
    CHECK(json["hit_ratio"] == 1.0 / 3);
    CHECK(json["entries"] == 2 * kernels);
    CHECK(json["archs"]["sm_90"].get<std::size_t>() + json["archs"]["sm_80"].get<std::size_t>() == 2 * kernels);
    CHECK(json["bytes"] == f.cache({"list"}).json()["bytes"]);
    CHECK(json["limit_bytes"] == 1 << 30);
    CHECK(f.cache({"stats"}, {"NORMQUANT_CACHE_SIZE=0"}).json()["limit_bytes"].is_null());
    CHECK(contains(f.run({"cache", "stats"}).out, "  hit ratio       33.3 %\n"));

    CHECK(f.cache({"stats", "--reset"}).json()["counters"]["compiles"] == 2 * kernels);
    const auto zero = f.cache({"stats"}).json();
    CHECK(zero["counters"]["compiles"] == 0);
    CHECK(zero["hit_ratio"].is_null());
    CHECK(zero["entries"] == 2 * kernels);
}

TEST_CASE("a read-only or untrusted root is looked at, and not changed") {
    const CacheFixture f;
    f.warm("64", "sm_90");
    const std::string bundle = f.directory / "kernels.nqb";
    REQUIRE(f.cache({"export", bundle}).exit_code == 0);
    const auto before = files_below(f.root);
    const std::vector<std::vector<std::string>> changing{{"verify", "--repair"},
                                                         {"import", bundle},
                                                         {"gc", "--max-age", "1s"},
                                                         {"clear", "--yes"},
                                                         {"stats", "--reset"}};
    for (const auto& command : changing) {
        const ToolResult result = f.cache(command, {"NORMQUANT_CACHE_READONLY=on"});
        CHECK(result.exit_code == 1);
        CHECK(contains(result.err, "NORMQUANT_CACHE_READONLY"));
    }
    REQUIRE(chmod(f.root.c_str(), 0777) == 0);
    for (const auto& command : changing) {
        const ToolResult result = f.cache(command);
        CHECK(result.exit_code == 1);
        CHECK(contains(result.err, "can be written by others"));
    }
    CHECK(f.cache({"list"}, {"NORMQUANT_CACHE_SHARED=on"}).json()["entries"].size() == before.size());
    CHECK(files_below(f.root) == before);
}

TEST_CASE("a root that a context would not use: every command says so, in the same words") {
    const CacheFixture f;
    f.warm("64", "sm_90");
    const std::string bundle = f.directory / "kernels.nqb", key = f.entries()[0]["key"];
    REQUIRE(f.cache({"export", bundle}).exit_code == 0);
    const auto refused = [&](const std::string& root, const std::string& message) {
        for (const std::vector<std::string>& command :
             std::vector<std::vector<std::string>>{{"list"},
                                                   {"show", key},
                                                   {"verify"},
                                                   {"verify", "--repair"},
                                                   {"extract", key, "-o", f.directory / "cubin"},
                                                   {"export", f.directory / "out.nqb"},
                                                   {"import", bundle},
                                                   {"gc"},
                                                   {"clear", "--yes"},
                                                   {"stats"},
                                                   {"stats", "--reset"}}) {
            const ToolResult result = f.cache(command, {"NORMQUANT_CACHE_DIR=" + root});
            INFO(command[0] << " of " << root << ": " << result.out);
            CHECK(result.exit_code == 1);
            CHECK(result.json()["error"]["message"] == message);
        }
        // A bundle is looked at all the same; and explain tells what a context would do.
        CHECK(f.cache({"list", "--bundle", bundle}, {"NORMQUANT_CACHE_DIR=" + root}).exit_code == 0);
        const auto explained =
            f.cache({"explain", "--hidden", "64", "--arch", "sm_90"}, {"NORMQUANT_CACHE_DIR=" + root}).json();
        REQUIRE(explained["not_used"].size() == 1);
        CHECK(explained["not_used"][0]["error"] == message);
        CHECK(explained["kernels"][0]["source"]["place"] == "compile");
    };
    const std::string file = f.directory / "file", link = f.directory / "link";
    save(file, {'x'});
    refused(file, "cache directory " + file + " is not a directory");
    refused(file + "/cache", "cache directory " + file + "/cache: Not a directory");
    std::filesystem::create_directory_symlink(f.root, link);
    refused(link, "cache directory " + link + " is a symbolic link; name the directory itself");
    const auto mode = [](const std::string& path, mode_t value) { REQUIRE(chmod(path.c_str(), value) == 0); };
    mode(f.root + "/v1", 0600);
    refused(f.root, "cache directory " + f.root + "/v1: Permission denied");
    mode(f.root + "/v1", 0700);
    mode(f.root, 0600);
    refused(f.root, "cache directory " + f.root + ": Permission denied");
    mode(f.root, 0777);
    refused(f.root, "cache directory " + f.root +
                        " can be written by others (mode 0777); run chmod go-w on it, or set "
                        "NORMQUANT_CACHE_SHARED=on if everyone who can write it is trusted");
    CHECK_FALSE(std::filesystem::exists(f.directory / "cubin"));
    CHECK_FALSE(std::filesystem::exists(f.directory / "out.nqb"));
}

TEST_CASE("layers that cannot be used and directories that cannot be read are named, and the rest is looked at") {
    const CacheFixture f;
    const std::size_t kernels = f.warm("64", "sm_90,sm_80");
    const auto entry = f.entries()[0];
    const std::string key = entry["key"], cubin = f.directory / "cubin", out = f.directory / "out.nqb";
    const std::vector<std::string> gone{"NORMQUANT_BUNDLES=/nonexistent/x.nqb"};
    const std::vector<std::vector<std::string>> commands{
        {"list"}, {"show", key}, {"verify"}, {"extract", key, "-o", cubin, "--force"}, {"export", out}, {"stats"}};
    for (const auto& command : commands) {
        const ToolResult result = f.cache(command, gone);
        INFO(command[0]);
        CHECK(contains(result.err, "normquant: not used: "));
        CHECK(contains(result.err, "/nonexistent/x.nqb"));
        CHECK(result.exit_code == (command[0] == "verify" ? 1 : command[0] == "export" ? 3 : 0));
    }
    CHECK(f.cache({"list"}, gone).json()["entries"].size() == kernels);

    const std::string closed =
        std::filesystem::path(f.cache({"list", "--arch", "sm_80"}).json()["entries"][0]["path"].get<std::string>())
            .parent_path();
    const std::size_t hidden = files_below(closed).size();
    REQUIRE(chmod(closed.c_str(), 0) == 0);
    const std::string open_key = f.cache({"list", "--arch", "sm_90"}).json()["entries"][0]["key"];
    for (auto command : commands) {
        if (command.size() > 1 && command[1] == key) command[1] = open_key;
        const ToolResult result = f.cache(command);
        INFO(command[0]);
        CHECK(contains(result.err, "normquant: not read: " + closed + ": Permission denied"));
        CHECK(result.exit_code == (command[0] == "verify" ? 1 : command[0] == "export" ? 3 : 0));
    }
    const auto listed = f.cache({"list"}).json();
    CHECK(listed["entries"].size() == kernels - hidden);
    REQUIRE(listed["not_read"].size() == 1);
    CHECK(listed["not_read"][0]["path"] == closed);
    CHECK(f.cache({"verify"}).json()["left"] == 1);
    CHECK(f.cache({"stats"}).json()["not_read"].size() == 1);
    CHECK(column(f.cache({"export", out}).json()["left_out"], "path") == std::vector{closed});
    CHECK(f.cache({"gc"}).exit_code == 1);
    CHECK(f.cache({"clear", "--yes"}).exit_code == 1);
    REQUIRE(chmod(closed.c_str(), 0700) == 0);
    CHECK(f.entries().size() == hidden);

    // What cannot be listed may serve all the same.
    f.warm("64", "sm_90");
    REQUIRE(chmod((f.root + "/v1").c_str(), 0300) == 0);
    CHECK(column(f.cache({"list"}).json()["not_read"], "path") == std::vector{f.root + "/v1"});
    CHECK(f.cache({"verify"}).exit_code == 1);
    const auto explained = f.cache({"explain", "--hidden", "64", "--arch", "sm_90"}).json();
    CHECK(explained["not_used"].empty());
    CHECK(explained["kernels"][0]["source"]["place"] == "root");
    REQUIRE(chmod((f.root + "/v1").c_str(), 0700) == 0);
}

TEST_CASE("gc and clear: files that cannot be removed are counted, and are a failure") {
    const CacheFixture f;
    const std::size_t kernels = f.warm("64", "sm_90,sm_80");
    const auto entries = f.entries();
    for (const auto& entry : entries) f.set_age(entry["path"], 40 * 86400);
    const std::string shard = std::filesystem::path(entries[0]["path"].get<std::string>()).parent_path();
    const std::size_t kept = files_below(shard).size();
    REQUIRE(kept < kernels);
    REQUIRE(chmod(shard.c_str(), 0500) == 0);
    const ToolResult aged = f.cache({"gc", "--max-age", "30d"});
    CHECK(aged.exit_code == 1);
    CHECK(aged.json()["failed"] == kept);
    CHECK(aged.json()["removed_entries"] == kernels - kept);
    CHECK(aged.json()["left_entries"] == kept);
    const ToolResult cleared = f.cache({"clear", "--yes"});
    CHECK(cleared.exit_code == 1);
    CHECK(cleared.json()["failed"] == kept);
    CHECK(contains(f.run({"cache", "clear", "--yes"}).out, std::to_string(kept) + " could not be removed; "));
    REQUIRE(chmod(shard.c_str(), 0700) == 0);
    const ToolResult done = f.cache({"clear", "--yes"});
    CHECK(done.exit_code == 0);
    CHECK(done.json()["failed"] == 0);
}

TEST_CASE("stats --reset waits its turn, and keeps the file's mode") {
    const CacheFixture f;
    const std::size_t kernels = f.warm("64", "sm_90");
    {
        const auto turn = nq::FileLock::try_acquire(nq::system_files(), f.root + "/v1/locks/statistics", 0600);
        REQUIRE(turn.status() == nq::FileLock::Status::held);
        const ToolResult busy = f.cache({"stats", "--reset"});
        CHECK(busy.exit_code == 1);
        CHECK(contains(busy.err, "could not be reset"));
    }
    CHECK(f.cache({"stats"}).json()["counters"]["compiles"] == kernels);
    const auto mode = [&] { return std::filesystem::status(f.root + "/v1/stats").permissions(); };
    CHECK(f.cache({"stats", "--reset"}).exit_code == 0);
    CHECK(mode() == std::filesystem::perms(0600));
    const mode_t mask = umask(0);
    CHECK(f.cache({"stats", "--reset"}, {"NORMQUANT_CACHE_SHARED=on"}).exit_code == 0);
    umask(mask);
    CHECK(mode() == std::filesystem::perms(0666));
    CHECK(f.cache({"stats"}, {"NORMQUANT_CACHE_SHARED=on"}).json()["counters"]["compiles"] == 0);
}

TEST_CASE("a bundle is looked at like a cache") {
    const CacheFixture f;
    const std::size_t kernels = f.warm("64", "sm_90");
    const auto entry = f.entries()[0];
    const std::string key = entry["key"], bundle = f.directory / "kernels.nqb";
    REQUIRE(f.cache({"export", bundle}).exit_code == 0);
    const std::string in_root = f.run({"cache", "extract", key, "-o", "-"}).out;
    CHECK(f.cache({"clear", "--yes"}).exit_code == 0);
    f.warm("128", "sm_90");
    const auto in_bundle = [&](std::vector<std::string> command) {
        command.insert(command.end(), {"--bundle", bundle});
        return f.cache(command);
    };
    CHECK(column(in_bundle({"list"}).json()["entries"], "place") == std::vector<std::string>(kernels, "bundle"));
    CHECK(in_bundle({"show", key}).json()["entries"][0]["compiler"] == entry["compiler"]);
    CHECK(f.cache({"show", key}).exit_code == 1);
    CHECK(f.run({"cache", "extract", key, "-o", "-", "--bundle", bundle}).out == in_root);
    CHECK(in_bundle({"verify"}).json()["sound"] == kernels);
    const ToolResult repair = in_bundle({"verify", "--repair"});
    CHECK(repair.exit_code == 2);
    CHECK(contains(repair.err, "--bundle '" + bundle + "'"));
    const std::vector<std::string> problem{"explain", "--hidden",  "64,128",    "--arch",
                                           "sm_90",   "--variant", "throughput"};
    const auto kernel = in_bundle(problem).json()["kernels"];
    CHECK(kernel[0]["source"]["place"] == "bundle");
    CHECK(kernel[1]["source"]["place"] == "compile");
    CHECK(f.cache(problem).json()["kernels"][0]["source"]["place"] == "compile");
    CHECK(f.cache(problem).json()["kernels"][1]["source"]["place"] == "root");

    Blob bytes = read(bundle);
    bytes[bytes.size() - 40] ^= 1;
    save(bundle, bytes);
    CHECK(in_bundle({"verify"}).exit_code == 1);
    CHECK(in_bundle({"verify"}).json()["bad"].size() == 1);
}

TEST_CASE("explain: an NVRTC that is too old for 32-byte loads, or for the target, compiles none") {
    const CacheFixture f;
    const std::string old = "NORMQUANT_NVRTC=" NORMQUANT_FAKE_NVRTC_12_8;
    const std::vector<std::string> problem{"explain", "--hidden", "1024", "--arch", "sm_100a"};
    const auto places = [&](const std::vector<std::string>& more) {
        std::map<std::string, std::string> by_variant;
        const auto explained = f.cache(problem, more).json();
        for (const auto& kernel : explained["kernels"]) {
            const std::string variant = kernel["fields"]["variant"];
            by_variant[variant.substr(0, variant.find(' '))] = kernel["source"]["place"];
        }
        return by_variant;
    };
    std::size_t wide = 0;
    const auto today = places({}), before = places({old});
    REQUIRE(today.size() == before.size());
    for (const auto& [variant, place] : before) {
        const bool is_wide = contains(variant, "_32b");
        wide += is_wide ? 1 : 0;
        CHECK(place == (is_wide ? "none" : "compile"));
        CHECK(today.at(variant) == "compile");
    }
    CHECK(wide >= 1);
    const std::string text = f.run({"cache", "explain", "--hidden", "1024", "--arch", "sm_100a"}, {old}).out;
    CHECK(contains(text, "compiles no 32-byte loads"));
    CHECK(contains(text, "not needed: the variant with 16-byte loads stands in for it"));

    const auto family = f.cache({"explain", "--hidden", "1024", "--arch", "sm_100f"}, {old}).json()["kernels"][0];
    REQUIRE(family["source"]["place"] == "none");
    CHECK(family["source"]["needed"] == true);
    CHECK(contains(family["source"]["reason"].get<std::string>(), "sm_100f"));
    // What somebody else has compiled is used.
    const std::string bundle = f.directory / "kernels.nqb";
    REQUIRE(f.warm("1024", "sm_100a") > 0);
    REQUIRE(f.cache({"export", bundle}).exit_code == 0);
    for (const auto& [variant, place] : places({old, "NORMQUANT_BUNDLES=" + bundle})) CHECK(place == "bundle");
}

TEST_CASE("what entries and files say about themselves does nothing to the terminal") {
    const CacheFixture f;
    f.warm("64", "sm_90,sm_80");
    const auto entries = f.entries();
    const std::string evil = "\x1b[2J\x07\nforged line\x9b\x7f";
    nlohmann::json metadata;
    metadata["nvrtc"] = evil;
    metadata[evil] = evil;
    metadata["request"] = {{"problem", evil}, {"variant", evil}, {"arch", evil}, {evil, evil}};
    metadata["compiler"] = {{"nvrtc", evil}};
    const auto replace = nlohmann::json::error_handler_t::replace;
    f.set_metadata(entries[0]["path"], metadata.dump(-1, ' ', true, replace));
    f.set_metadata(entries[1]["path"], evil);
    const std::string arch = f.root + "/v1/sm_90\x1b[1m";
    std::filesystem::create_directories(arch + "/ff");
    save(arch + "/ff/\x1b[31m.nqc", {'x'});
    save(f.root + "/v1/sm_80/\x1b]", {'x'});

    const std::string key = entries[0]["key"], bundle = f.directory / "\x1b[5m.nqb";
    const std::vector<std::vector<std::string>> commands{
        {"list"},
        {"list", "--sort", "problem"},
        {"show", key, "--all"},
        {"show", entries[1]["key"], "--all"},
        {"show", arch + "/ff/\x1b[31m.nqc"},
        {"show", "\x1b[2J"},
        {"verify"},
        {"explain", "--hidden", "64", "--arch", "sm_90,sm_80", "--against", key},
        {"explain", "--hidden", "64", "--arch", "sm_80", "--bundle", bundle},
        {"export", bundle},
        {"list", "--bundle", bundle},
        {"list", "--bundle", "\x1b[2J"},
        {"stats"},
        {"gc"},
        {"verify", "--repair"},
        {"list", "--cache-dir", f.directory / "\x1b[2J"},
        {"clear", "--yes"}};
    for (std::vector<std::string> command : commands) {
        command.insert(command.begin(), "cache");
        const ToolResult result = f.run(command);
        INFO(command[1] << ": " << result.out << result.err);
        for (const std::string& text : {result.out, result.err}) {
            CHECK(text.find_first_of("\x1b\x07\x7f\x9b") == text.npos);
            CHECK_FALSE(contains(text, "\nforged line"));
        }
        CHECK_FALSE((result.out + result.err).empty());
    }
}
