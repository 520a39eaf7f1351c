// A cache filled by the NVRTC that compiles nothing: what the commands around it do can be tested anywhere.
#pragma once

#include "cache/entry.h"
#include "file_samples.h"
#include "support/temp_directory.h"
#include "tool.h"

#include <sys/stat.h>
#include <sys/time.h>

#include <ctime>
#include <stdexcept>
#include <string>
#include <vector>

namespace nq::test {

struct CacheFixture {
    TempDirectory directory;
    std::string root = directory / "cache";

    std::vector<std::string> settings(std::vector<std::string> more = {}) const {
        std::vector<std::string> all{"NORMQUANT_CACHE_DIR=" + root, "NORMQUANT_NVRTC=" NORMQUANT_FAKE_NVRTC};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }

    ToolResult run(const std::vector<std::string>& arguments, const std::vector<std::string>& more = {}) const {
        return run_tool(arguments, settings(more));
    }

    // normquant cache ARGUMENTS --json
    ToolResult cache(std::vector<std::string> arguments, const std::vector<std::string>& more = {}) const {
        arguments.insert(arguments.begin(), "cache");
        arguments.push_back("--json");
        return run(arguments, more);
    }

    // The number of kernels that are there now. NVRTC_APPEND_FLAGS in `more` makes it another compiler.
    std::size_t warm(const std::string& hidden, const std::string& archs,
                     const std::vector<std::string>& more = {}) const {
        const ToolResult result = run(
            {"warmup", "--hidden", hidden, "--arch", archs, "--format", "nvfp4", "--layout", "linear", "--json"}, more);
        if (result.exit_code != 0) throw std::runtime_error("warmup: " + result.err);
        return result.json()["kernels"].get<std::size_t>();
    }

    // An entry of another version, or of whoever can write to the cache: sound, with this metadata.
    static void set_metadata(const std::string& path, const std::string& metadata) {
        const Blob bytes = read(path);
        auto entry = decode_entry(bytes.data(), bytes.size());
        if (!entry) throw std::runtime_error("decode " + path);
        entry->metadata = metadata;
        save(path, encode_entry(*entry));
    }

    nlohmann::json entries() const { return cache({"list"}).json()["entries"]; }

    static void set_age(const std::string& path, std::time_t seconds) {
        const timeval then[2] = {{std::time(nullptr) - seconds, 0}, {std::time(nullptr) - seconds, 0}};
        if (utimes(path.c_str(), then) != 0) throw std::runtime_error("utimes " + path);
    }
};

// More lines than the pipe of meet_tool() holds: it cannot have ended when its first has been read.
inline std::string many_lengths() {
    std::string lengths = "64";
    for (int i = 5; i < 40; ++i) lengths += "," + std::to_string(16 * i);
    return lengths;
}

}  // namespace nq::test
