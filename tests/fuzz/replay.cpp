// Runs a target without libFuzzer: over its seeds, their truncations and single changed bytes, and over inputs that
// once failed.
//   replay_NAME [FILE...]          inputs to run besides the seeds; a folder stands for its files
//   replay_NAME --write-seeds DIR  writes the seeds as files for libFuzzer
#include "fuzz/fuzz.h"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace {

namespace fs = std::filesystem;
using nq::fuzz::accepts;
using nq::fuzz::bytes_of;
using nq::fuzz::ExactCopy;

bool run(std::string_view input) { return accepts(ExactCopy(bytes_of(input)).bytes()); }

void write_seeds(const fs::path& directory) {
    fs::create_directories(directory);
    std::size_t number = 0;
    for (const std::string& seed : nq::fuzz::seeds()) {
        std::ofstream file(directory / ("seed" + std::to_string(number++)), std::ios::binary);
        file << seed;
        if (!file.flush()) throw std::runtime_error("cannot write into " + directory.string());
    }
}

std::size_t run_file(const fs::path& path) {
    if (fs::is_directory(path)) {
        std::size_t count = 0;
        for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
            if (entry.is_regular_file()) count += run_file(entry.path());
        }
        return count;
    }
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path.string());
    std::printf("%s\n", path.c_str());
    std::fflush(stdout);  // names the input that aborts
    run(std::string(std::istreambuf_iterator<char>(file), {}));
    return 1;
}

std::size_t run_seed(const std::string& seed) {
    if (!run(seed)) throw std::runtime_error("a seed is not accepted: " + seed);
    for (std::size_t at = 0; at < seed.size(); ++at) {
        run(std::string_view(seed).substr(0, at));
        for (const int value : {0x00, 0xff, seed[at] ^ 1, seed[at] ^ 0x80}) {
            std::string changed = seed;
            changed[at] = static_cast<char>(value);
            run(changed);
        }
    }
    return 1 + 5 * seed.size();
}

}  // namespace

int main(int argc, char** argv) try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.size() == 2 && arguments[0] == "--write-seeds") {
        write_seeds(arguments[1]);
        return 0;
    }
    std::size_t inputs = 0;
    for (const std::string& path : arguments) inputs += run_file(path);
    for (const std::string& seed : nq::fuzz::seeds()) inputs += run_seed(seed);
    std::printf("%zu inputs\n", inputs);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
