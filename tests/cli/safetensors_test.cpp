#include "safetensors.h"

#include "file_samples.h"
#include "support/catch.h"

using namespace nq;
using namespace nq::cli;
using namespace nq::test;

namespace {

const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},"x":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
    R"("w":{"dtype":"F32","shape":[3],"data_offsets":[12,24]},"i":{"dtype":"I64","shape":[1],"data_offsets":[24,32]}})";

Blob sample() {
    Blob data = values(Element::bf16, 6, 1);
    const Blob weight = values(Element::fp32, 3, 2);
    data.insert(data.end(), weight.begin(), weight.end());
    data.insert(data.end(), 8, 0);
    return safetensors(kHeader, data);
}

std::string refusal(const std::string& header, std::size_t data_bytes) {
    const auto entries = parse_safetensors(safetensors(header, Blob(data_bytes)));
    return entries.ok() ? "accepted" : entries.error().message;
}

}  // namespace

TEST_CASE("safetensors: tensors by name") {
    const Blob file = sample();
    const auto entries = parse_safetensors(file);
    REQUIRE(entries.ok());
    REQUIRE(entries->size() == 3);
    std::string name = "x";
    const auto x = read_safetensor(*entries, file, name);
    REQUIRE(x.ok());
    CHECK(x->element == Element::bf16);
    CHECK(x->shape == std::vector<std::uint64_t>{2, 3});
    CHECK(x->bytes == values(Element::bf16, 6, 1));
    name = "w";
    CHECK(read_safetensor(*entries, file, name)->bytes == values(Element::fp32, 3, 2));

    name = "y";
    const auto missing = read_safetensor(*entries, file, name);
    REQUIRE_FALSE(missing.ok());
    CHECK(missing.error().message.find("no tensor 'y'; available: ") != std::string::npos);
    CHECK(missing.error().message.find("x BF16[2, 3]") != std::string::npos);
    CHECK(missing.error().message.find("w F32[3]") != std::string::npos);
    name = "i";
    CHECK(read_safetensor(*entries, file, name).error().message.find("'i' is I64: F16, BF16 and F32") !=
          std::string::npos);
    name = "";
    CHECK(read_safetensor(*entries, file, name).error().message.find("3 tensors; add ':NAME'") != std::string::npos);
}

TEST_CASE("safetensors: the only tensor needs no name") {
    const Blob file = safetensors(R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})", Blob(2));
    std::string name;
    CHECK(read_safetensor(*parse_safetensors(file), file, name).ok());
    CHECK(name == "a");
}

TEST_CASE("safetensors: what is refused, and why") {
    const auto entry = [](const std::string& fields) { return "{\"a\":{" + fields + "}}"; };
    CHECK(refusal("[1]", 0).find("not a JSON object") != std::string::npos);
    CHECK(refusal("{\"a\":", 0).find("not a JSON object") != std::string::npos);
    CHECK(refusal("", 0).find("not a JSON object") != std::string::npos);
    CHECK(refusal("{\"a\":1}", 0).find("tensor 'a'") != std::string::npos);
    CHECK(refusal(entry(R"("dtype":"F16","shape":[1])"), 2).find("dtype, shape and data_offsets") != std::string::npos);
    CHECK(refusal(entry(R"("dtype":16,"shape":[1],"data_offsets":[0,2])"), 2).find("tensor 'a'") != std::string::npos);
    CHECK(refusal(entry(R"("dtype":"F16","shape":[-1],"data_offsets":[0,2])"), 2).find("shape") != std::string::npos);
    CHECK(refusal(entry(R"("dtype":"F16","shape":[1.0],"data_offsets":[0,2])"), 2).find("shape") != std::string::npos);
    CHECK(refusal(entry(R"("dtype":"F16","shape":[1],"data_offsets":[0])"), 2).find("data_offsets") !=
          std::string::npos);
    CHECK(refusal(entry(R"("dtype":"F16","shape":[1],"data_offsets":[2,0])"), 2).find("not within") !=
          std::string::npos);
    CHECK(refusal(entry(R"("dtype":"F16","shape":[2],"data_offsets":[0,4])"), 2).find("not within the 2 bytes") !=
          std::string::npos);
    CHECK(refusal(entry(R"("dtype":"F16","shape":[2],"data_offsets":[0,2])"), 2).find("not the size of F16 [2]") !=
          std::string::npos);
    CHECK(refusal(entry(R"("dtype":"F16","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0)
              .find("not the size") != std::string::npos);
    Blob long_header = safetensors("{}", {});
    long_header[7] = 0x7f;
    CHECK(parse_safetensors(long_header).error().message.find("header claims") != std::string::npos);
    // Deep nesting must not exhaust the stack.
    CHECK(refusal(std::string(100000, '['), 0).find("not a JSON object") != std::string::npos);
}

TEST_CASE("safetensors: cut short anywhere, it is refused") {
    const Blob file = sample();
    for (std::size_t size = 0; size < file.size(); ++size) {
        const Blob cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
        INFO(size);
        CHECK_FALSE(parse_safetensors(cut).ok());
    }
}

TEST_CASE("safetensors: any byte changed, every entry still lies within the file") {
    const Blob file = sample();
    for (std::size_t i = 0; i < file.size(); ++i) {
        for (const unsigned change : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u, 0x5du, 0xffu}) {
            Blob flipped = file;
            flipped[i] = static_cast<unsigned char>(flipped[i] ^ change);
            const auto entries = parse_safetensors(flipped);
            if (!entries.ok()) continue;
            for (const SafetensorsEntry& entry : *entries) {
                REQUIRE(entry.begin <= entry.end);
                REQUIRE(entry.end <= flipped.size());
                std::string name = entry.name;
                const auto tensor = read_safetensor(*entries, flipped, name);
                if (tensor.ok()) REQUIRE(tensor->bytes.size() == entry.end - entry.begin);
            }
        }
    }
}
