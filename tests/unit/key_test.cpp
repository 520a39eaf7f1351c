#include "cache/key.h"

#include <array>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "support/catch.h"

namespace {

using nq::compiler_id;
using nq::hex;
using nq::KeyFields;
using nq::request_key;

KeyFields fields(std::vector<std::pair<std::string, std::string>> list) { return KeyFields{std::move(list)}; }

}  // namespace

// Made by an independent implementation (Python's struct and xxhash). A change here orphans every cache in the field:
// it takes a new schema string, never a new constant under the old one.
TEST_CASE("golden keys") {
    CHECK(hex(request_key({})) == "5fbf8cd5546ee6e31bc87dbe78c7ebf3");
    CHECK(hex(compiler_id({})) == "30201e9d87e92c5133a84af1cec5cf81");
    CHECK(hex(request_key(fields({{"", ""}}))) == "bb28420a1a8ffdab91e2abd8d49b0851");
    const KeyFields three = fields({{"schema", "1"}, {"problem", "op=rmsnorm hidden=4096"}, {"arch", "sm_100f"}});
    CHECK(hex(request_key(three)) == "4a5b52f40caf4dcd209dac0b35563037");
    CHECK(hex(compiler_id(three)) == "ce1ffe7f5d51aaf279f573a4b3a0e007");
    std::string source;
    for (int i = 0; i < 5 * 256; ++i) source += static_cast<char>(i);
    CHECK(hex(request_key(fields({{"source", source}}))) == "8287df0009c0aaf4c249eeba3aefe580");
}

TEST_CASE("golden digests, in canonical byte order") {
    CHECK(hex(nq::digest128("")) == "99aa06d3014798d86001c324468d497f");
    CHECK(hex(nq::digest128("normquant")) == "3cacf05f0855fa525fd2bee56ee860b3");
}

TEST_CASE("a digest of parts is the digest of their concatenation") {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
    const std::string_view all = text;
    for (std::size_t cut : {0, 1, 88, 240, 241, 999, 1000})
        CHECK(nq::digest128({all.substr(0, cut), all.substr(cut)}) == nq::digest128(all));
}

// Every list below reads the same when fields are joined with separators, or shifts bytes between label and value.
TEST_CASE("field lists that look alike have different keys") {
    const std::string nul(1, '\0');
    const std::vector<KeyFields> lists = {
        {},
        fields({{"", ""}}),
        fields({{"", ""}, {"", ""}}),
        fields({{"a", "b"}}),
        fields({{"ab", ""}}),
        fields({{"", "ab"}}),
        fields({{"b", "a"}}),
        fields({{"a", "b"}, {"c", "d"}}),
        fields({{"c", "d"}, {"a", "b"}}),
        fields({{"a", "b|c=d"}}),
        fields({{"a", "b\nc=d"}}),
        fields({{"a", "b" + nul + "c" + nul + "d"}}),
        fields({{"a", "b" + nul}}),
        fields({{"a", nul + "b"}}),
        fields({{"a" + nul, "b"}}),
        fields({{"a", "b"}, {"", ""}}),
        fields({{"a", "b"}, {"a", "b"}}),
        fields({{"a", "b "}}),
        fields({{"A", "b"}}),
        // A value that spells out the encoding of a second field.
        fields({{"a", std::string("b\x01\0\0\0c\x01\0\0\0\0\0\0\0d", 15)}}),
    };
    std::set<nq::RequestKey> keys;
    for (const KeyFields& list : lists) {
        keys.insert(request_key(list));
        keys.insert(compiler_id(list));
    }
    CHECK(keys.size() == 2 * lists.size());
}

TEST_CASE("every byte of every field counts") {
    const KeyFields base = fields({{"problem", "hidden=4096"}, {"arch", "sm_90"}});
    std::set<nq::RequestKey> keys = {request_key(base)};
    std::size_t variants = 1;
    for (std::size_t f = 0; f < base.fields.size(); ++f) {
        for (const bool label : {true, false}) {
            const std::string& text = label ? base.fields[f].first : base.fields[f].second;
            for (std::size_t i = 0; i < text.size(); ++i) {
                KeyFields changed = base;
                (label ? changed.fields[f].first : changed.fields[f].second)[i] ^= 1;
                keys.insert(request_key(changed));
                ++variants;
            }
        }
    }
    CHECK(keys.size() == variants);
}

TEST_CASE("hex") {
    CHECK(hex(std::array<unsigned char, 4>{0x00, 0x0f, 0xa0, 0xff}) == "000fa0ff");
    CHECK(hex(std::span<const unsigned char>()).empty());
}
