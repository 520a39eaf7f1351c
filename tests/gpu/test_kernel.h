// A kernel of a test's own, compiled with the library's headers and options.
#pragma once

#include "gpu/gpu.h"

#include <string>

namespace nq::test {

class TestKernel {
public:
    // source: of an extern "C" kernel named test.
    TestKernel(const Gpu& gpu, const std::string& source);
    ~TestKernel();
    TestKernel(const TestKernel&) = delete;
    TestKernel& operator=(const TestKernel&) = delete;

    void enqueue(unsigned blocks, unsigned threads, void** arguments, CUstream stream) const;
    // And waits for it.
    void launch(unsigned blocks, unsigned threads, void** arguments) const;

private:
    const Gpu& gpu_;
    CUlibrary library_ = nullptr;
    CUkernel kernel_ = nullptr;
};

}  // namespace nq::test
