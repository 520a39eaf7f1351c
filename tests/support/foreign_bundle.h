// A bundle as an upgrade of the library leaves it behind.
#pragma once

#include "cache/bundle.h"

#include <nlohmann/json.hpp>

#include <stdexcept>
#include <string>

namespace nq::test {

// Its first `count` entries become those of a library with other kernel headers: what the key is made of is different, and so is the key.
inline void make_foreign(const std::string& path, std::size_t count) {
    const auto bundle = Bundle::open(system_files(), path, false);
    if (!bundle || bundle->items().size() < count) throw std::runtime_error("bundle " + path);
    std::vector<Entry> entries;
    std::vector<BundleItem> items;
    for (const BundleItem& item : bundle->items()) {
        auto entry = bundle->read(item);
        if (!entry) throw std::runtime_error("read " + path);
        if (entries.size() < count) {
            auto metadata = nlohmann::json::parse(entry->metadata);
            metadata["request"]["headers"] = std::string(32, '0');
            entry->metadata = metadata.dump();
            entry->key[0] ^= 1;
        }
        items.push_back({entry->key, entry->compiler, item.arch, 0, 0});
        entries.push_back(*std::move(entry));
    }
    const Outcome written = write_bundle(system_files(), path, items, [&](const BundleItem& item) -> Result<Entry> {
        for (const Entry& entry : entries) {
            if (entry.key == item.key && entry.compiler == item.compiler) return entry;
        }
        throw std::runtime_error("entry");
    });
    if (!written) throw std::runtime_error(written.error().message);
}

}  // namespace nq::test
