// The environment, as the block that a process has: NAME=value, separated by NUL.
#include "support/environment.h"

#include "fuzz/fuzz.h"

#include <map>

namespace nq::fuzz {

bool accepts(Bytes input) {
    std::map<std::string, std::string, std::less<>> variables;
    for (std::string_view rest = text_of(input); !rest.empty();) {
        const std::string_view item = rest.substr(0, rest.find('\0'));
        rest.remove_prefix(std::min(item.size() + 1, rest.size()));
        if (const std::size_t equals = item.find('='); equals != std::string_view::npos)
            variables.try_emplace(std::string(item.substr(0, equals)), item.substr(equals + 1));
    }
    const auto environment = read_environment([&variables](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
    });
    if (!environment) {
        const Error& error = environment.error();
        must(error.status == NQ_ERR_INVALID_ARGUMENT, "a wrong value is an invalid argument");
        must(variables.contains(error.message.substr(0, error.message.find_first_of("= "))),
             "the message begins with the variable at fault");
        return false;
    }
    const std::string& place = environment->default_cache_dir;
    must(place.empty() || (place.starts_with('/') && place.ends_with("/normquant")),
         "the default cache directory is an absolute path of ours");
    must(environment->cache_dir.has_value() == variables.contains("NORMQUANT_CACHE_DIR"),
         "a cache directory that is set is taken, empty or not");
    must(!environment->nvrtc || !environment->nvrtc->empty(), "NVRTC's path is not empty");
    must(!environment->libcuda || !environment->libcuda->empty(), "libcuda's path is not empty");
    must(environment->cuda_homes.size() <= variables.count("CUDA_HOME") + variables.count("CUDA_PATH"),
         "a CUDA home comes from a variable");
    return true;
}

std::vector<std::string> seeds() {
    const auto block = [](std::initializer_list<std::string_view> items) {
        std::string text;
        for (const std::string_view item : items) text.append(item).push_back('\0');
        return text;
    };
    return {
        block({"HOME=/home/user", "CUDA_HOME=/usr/local/cuda", "CUDA_PATH=/opt/cuda"}),
        block({"XDG_CACHE_HOME=/var/cache///", "HOME=relative", "NORMQUANT_JIT=off", "NORMQUANT_LOG=debug"}),
        block({"HOME=/", "NORMQUANT_CACHE_DIR=", "NORMQUANT_CACHE_SHARED=on", "NORMQUANT_JIT=on", "NORMQUANT_LOG=off"}),
        block({"HOME=", "XDG_CACHE_HOME=", "NORMQUANT_NVRTC=/lib/libnvrtc.so.13", "NORMQUANT_LIBCUDA=libcuda.so.1",
               "NORMQUANT_LOG=error"}),
        block({"HOME=/h", "NORMQUANT_CACHE_SIZE=512M", "NORMQUANT_CACHE_READONLY=on", "NORMQUANT_BUNDLES=/a:/b::c"}),
        block({"VIRTUAL_ENV=/venv", "CONDA_PREFIX=/venv", "NORMQUANT_CACHE_SIZE=18446744073709551615"}),
    };
}

}  // namespace nq::fuzz
