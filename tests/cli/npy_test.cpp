#include "npy.h"

#include "file_samples.h"
#include "support/catch.h"

#include <cstdint>

using namespace nq;
using namespace nq::cli;
using namespace nq::test;

namespace {

Result<Tensor> parse(const std::string& dictionary, std::size_t data_bytes) {
    return parse_npy(npy(dictionary, Blob(data_bytes)));
}

std::string message(const Result<Tensor>& tensor) { return tensor.ok() ? "accepted" : tensor.error().message; }

}  // namespace

TEST_CASE("npy: the types and versions that NumPy writes") {
    const Blob data = values(Element::fp16, 6, 1);
    for (const unsigned version : {1u, 2u, 3u}) {
        const auto tensor = parse_npy(npy(npy_dictionary("<f2", "(2, 3)"), data, static_cast<unsigned char>(version)));
        REQUIRE(tensor.ok());
        CHECK(tensor->element == Element::fp16);
        CHECK(tensor->stored_as == "<f2");
        CHECK(tensor->shape == std::vector<std::uint64_t>{2, 3});
        CHECK(tensor->bytes == data);
    }
    CHECK(parse(npy_dictionary("<f4", "(3,)"), 12)->element == Element::fp32);
    CHECK(parse(npy_dictionary("<u2", "(3,)"), 6)->element == Element::raw16);
    CHECK(parse(npy_dictionary("|V2", "(3,)"), 6)->element == Element::raw16);
    CHECK(parse(npy_dictionary("<V2", "(3,)"), 6)->element == Element::raw16);
    CHECK(parse(npy_dictionary("<f2", "()"), 2)->shape.empty());
    CHECK(parse(npy_dictionary("<f2", "(0, 16)"), 0)->bytes.empty());
    CHECK(parse("{\"shape\":(1,),\"fortran_order\":False,\"descr\":\"<f2\"}", 2).ok());
}

TEST_CASE("npy: what is refused, and why") {
    CHECK(message(parse(npy_dictionary(">f2", "(3,)"), 6)).find("'>f2' is not accepted") != std::string::npos);
    CHECK(message(parse(npy_dictionary("<f8", "(3,)"), 24)).find("'<f8' is not accepted") != std::string::npos);
    CHECK(message(parse("{'descr': '<f2', 'fortran_order': True, 'shape': (3,), }", 6)).find("column-major") !=
          std::string::npos);
    CHECK(message(parse(npy_dictionary("<f2", "(3,)"), 4)).find("needs 6 bytes of data, the file holds 4") !=
          std::string::npos);
    CHECK(message(parse(npy_dictionary("<f2", "(3,)"), 8)).find("needs 6 bytes of data, the file holds 8") !=
          std::string::npos);
    CHECK(message(parse(npy_dictionary("<f2", "(4294967296, 4294967296)"), 0)).find("overflows") != std::string::npos);
    CHECK(message(parse_npy(npy(npy_dictionary("<f2", "(1,)"), Blob(2), 4))).find("version 4.0 is unknown") !=
          std::string::npos);
    Blob huge = npy(npy_dictionary("<f2", "(1,)"), Blob(2), 2);
    huge[11] = 0x7f;
    CHECK(message(parse_npy(huge)).find("header claims") != std::string::npos);

    for (const char* dictionary : {
             "",
             "{}",
             "{'descr': '<f2', 'fortran_order': False}",
             "{'descr': '<f2', 'fortran_order': False, 'shape': (3)}",
             "{'descr': '<f2', 'fortran_order': False, 'shape': (3 4)}",
             "{'descr': '<f2', 'fortran_order': False, 'shape': (,)}",
             "{'descr': '<f2', 'fortran_order': False, 'shape': (-3,)}",
             "{'descr': '<f2', 'fortran_order': False, 'shape': (18446744073709551616,)}",
             "{'descr': '<f2', 'fortran_order': 0, 'shape': (3,)}",
             "{'descr': [('a', '<f2')], 'fortran_order': False, 'shape': (3,)}",
             "{'descr': '<f2', 'fortran_order': False, 'shape': (3,), 'more': '1'}",
             "{'descr': '<f2', 'descr': '<f2', 'fortran_order': False, 'shape': (3,)}",
             "{'descr': '<f2' 'fortran_order': False, 'shape': (3,)}",
             "{'descr': '<f2', 'fortran_order': False, 'shape': (3,)} x",
             "__import__('os').abort()",
         }) {
        INFO(dictionary);
        CHECK(message(parse(dictionary, 6)).find("not the dictionary") != std::string::npos);
    }
}

TEST_CASE("npy: cut short anywhere, it is refused") {
    const Blob file = npy(npy_dictionary("<f2", "(2, 3)"), values(Element::fp16, 6, 2));
    for (std::size_t size = 0; size < file.size(); ++size) {
        // An exact-size copy, so that a sanitizer sees a read past the end.
        const Blob cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
        INFO(size);
        CHECK_FALSE(parse_npy(cut).ok());
    }
}

TEST_CASE("npy: any byte changed, the result is still consistent") {
    const Blob file = npy(npy_dictionary("<f2", "(2, 3)"), values(Element::fp16, 6, 3));
    for (std::size_t i = 0; i < file.size(); ++i) {
        for (unsigned change = 1; change < 256; ++change) {
            Blob flipped = file;
            flipped[i] = static_cast<unsigned char>(flipped[i] ^ change);
            const auto tensor = parse_npy(flipped);
            if (!tensor.ok()) continue;
            std::uint64_t bytes = 0;
            REQUIRE(checked_bytes(tensor->shape, tensor->element == Element::fp32 ? 4 : 2, bytes));
            REQUIRE(bytes == tensor->bytes.size());
        }
    }
}

TEST_CASE("npy: the header that is written is one that NumPy reads") {
    for (const auto& [shape, text] : {std::pair<std::vector<std::uint64_t>, std::string>{{3, 288}, "(3, 288)"},
                                      {{4096}, "(4096,)"},
                                      {{0, 8}, "(0, 8)"}}) {
        const std::string header = npy_uint8_header(shape);
        CHECK(header.size() % 64 == 0);
        CHECK(header.substr(0, 8) == std::string("\x93NUMPY\1\0", 8));
        CHECK(static_cast<unsigned char>(header[8]) + 256u * static_cast<unsigned char>(header[9]) + 10 ==
              header.size());
        CHECK(header.find("{'descr': '|u1', 'fortran_order': False, 'shape': " + text + ", }") == 10);
        CHECK(header.back() == '\n');
    }
}
