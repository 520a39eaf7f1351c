// A bundle: its header and index, with the checksum made right, and each entry that the index leads to.
#include "cache/bundle.h"

#include "fuzz/fuzz.h"
#include "support/temp_directory.h"
#include "unit/entry_samples.h"

#include <cstring>
#include <fstream>
#include <iterator>

namespace nq::fuzz {
namespace {

// Where the format puts things, written down a second time.
constexpr std::size_t kTotal = 16, kCount = 24, kChecksum = 40, kHeader = 56, kRow = 64;

void seal(std::string& file) {
    if (file.size() < kHeader) return;
    const std::uint64_t total = file.size();
    std::memcpy(file.data() + kTotal, &total, sizeof total);
    std::uint64_t count = 0;
    std::memcpy(&count, file.data() + kCount, sizeof count);
    if (count > (total - kHeader) / kRow) return;
    const std::string_view all = file;
    const Digest128 digest = digest128({all.substr(0, kChecksum), all.substr(kHeader, count * kRow)});
    std::memcpy(file.data() + kChecksum, digest.data(), digest.size());
}

bool decodes(Bytes file) {
    const auto head = bundle_head_bytes(file.data(), file.size(), file.size());
    if (!head) {
        must(!head.error().message.empty(), "a refusal says why");
        return false;
    }
    must(*head >= kHeader && *head <= file.size(), "header and index lie inside the file");
    const ExactCopy exact(file.first(*head));
    const auto items = decode_bundle_head(exact.bytes().data(), exact.bytes().size(), file.size());
    if (!items) {
        must(!items.error().message.empty(), "a refusal says why");
        return false;
    }
    for (const BundleItem& item : *items) {
        must(item.offset >= *head && item.offset <= file.size() && item.bytes <= file.size() - item.offset,
             "entries lie inside the file, behind the index");
        must(item.arch.find('/') == std::string::npos && item.arch.find('.') == std::string::npos && !item.arch.empty(),
             "a target's name is no path");
        (void)decode_entry(file.data() + item.offset, item.bytes);
    }
    return true;
}

}  // namespace

bool accepts(Bytes input) {
    decodes(input);
    std::string sealed(text_of(input));
    seal(sealed);
    return decodes(ExactCopy(bytes_of(sealed)).bytes());
}

std::vector<std::string> seeds() {
    const test::TempDirectory directory;
    std::vector<std::string> files;
    for (const int count : {0, 1, 3}) {
        std::vector<Entry> entries;
        std::vector<BundleItem> items;
        for (int i = 0; i < count; ++i) {
            entries.push_back(test::sample_entry("entry " + std::to_string(i)));
            items.push_back({entries.back().key, entries.back().compiler, "sm_100f"});
        }
        const std::string path = directory / "bundle";
        const Outcome written = write_bundle(system_files(), path, items, [&](const BundleItem& item) -> Result<Entry> {
            for (const Entry& entry : entries)
                if (entry.key == item.key) return entry;
            return Error{};
        });
        must(written.ok(), "a bundle can be written here");
        std::ifstream file(path, std::ios::binary);
        files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return files;
}

}  // namespace nq::fuzz
