// A fuzz target is one file that defines accepts() and seeds(). libfuzzer.cpp gives it to libFuzzer; replay.cpp runs it
// over its seeds in every other build.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nq::fuzz {

using Bytes = std::span<const unsigned char>;

// Runs the code under test on an input that lies in a block of exactly its size: did the code accept it? Calls must()
// for what has to hold either way.
bool accepts(Bytes input);

// Inputs that are accepted, made by code and not kept as files, so that they follow the formats. Mutation starts from
// them.
std::vector<std::string> seeds();

// Prints the promise and aborts where it is broken, which libFuzzer reports with the input.
void must(bool kept, const char* promise);

inline Bytes bytes_of(std::string_view text) {
    return {reinterpret_cast<const unsigned char*>(text.data()), text.size()};
}

inline std::string_view text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// A copy without a spare byte, so that a sanitizer sees a read beyond its end.
class ExactCopy {
public:
    explicit ExactCopy(Bytes bytes);
    Bytes bytes() const { return {block_.get(), size_}; }

private:
    std::unique_ptr<unsigned char[]> block_;
    std::size_t size_;
};

}  // namespace nq::fuzz
