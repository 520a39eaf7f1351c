// The NVRTC that the tests of generated units use.
#pragma once

#include "cuda/nvrtc.h"
#include "support/environment.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace nq::test {

inline NvrtcSearch nvrtc_search() {
    const auto environment = read_environment();
    if (!environment) throw std::runtime_error(environment.error().message);
    NvrtcSearch search;
    search.path = environment->nvrtc.value_or("");
    search.cuda_homes = environment->cuda_homes;
    search.python_environments = environment->python_environments;
    return search;
}

// Skips where there is none at all: one that is there but cannot be used is a failure, and so is one that is named.
inline const Nvrtc& nvrtc() {
    static const auto loaded = [] {
        auto result = load_nvrtc(nvrtc_search());
        if (result) return *result;
        if (!nvrtc_search().path.empty() || locate_nvrtc(nvrtc_search())) throw std::runtime_error(result.error().message);
        std::printf("skipped: %s\n", result.error().message.c_str());
        std::exit(77);
    }();
    return *loaded;
}

}  // namespace nq::test
