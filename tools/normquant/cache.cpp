// normquant cache: looks at the kernel cache, and changes nothing in it.
#include "cache/store.h"
#include "command.h"
#include "files.h"
#include "options.h"
#include "support/file.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <array>
#include <ctime>
#include <filesystem>
#include <memory>

namespace nq::cli {
namespace {

constexpr const char* kFooter =
    R"(The cache holds one file a kernel: <root>/v1/<arch>/<2 hex>/<30 hex>-<16 hex>.nqc, named by its request key and by the NVRTC
that made it. These commands only read. It is always safe to delete the directory: kernels are compiled again.

Examples:
  normquant cache path
  normquant cache list
  normquant cache show 3fa94c           any unique beginning of a key, or the path of a file
  normquant cache verify && echo sound
Exit codes: 0 done, 1 no cache, no such entry, or bad entries, 2 bad option.)";

std::string utc(std::int64_t seconds) {
    const auto time = static_cast<std::time_t>(seconds);
    std::tm parts{};
    std::array<char, 32> text{};
    gmtime_r(&time, &parts);
    std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text.data();
}

Result<std::string> cache_root(const std::string& cache_dir) {
    const auto context = create_context(cache_dir);
    if (!context) return context.error();
    std::string root = nq_context_cache_dir(context->get());
    if (root.empty())
        return failure("there is no disk cache: NORMQUANT_CACHE_DIR is empty, or no home directory is known");
    return root;
}

std::vector<StoredEntry> entries_of(const std::string& root) {
    Logger logger(nullptr, nullptr, NQ_LOG_WARN);
    return Store(root, false, system_files(), logger).list();
}

Json parse_metadata(const StoredEntry& stored) {
    if (!stored.entry) return nullptr;
    Json metadata = Json::parse(stored.entry->metadata, nullptr, /*allow_exceptions=*/false);
    return metadata.is_discarded() ? Json(stored.entry->metadata) : metadata;
}

// One of the labelled fields that the request key is made of; "" where the metadata has none.
std::string request_field(const Json& metadata, const std::string& label) {
    const auto field = Json::json_pointer("/request/" + label);
    return metadata.contains(field) && metadata[field].is_string() ? metadata[field].get<std::string>() : "";
}

Json describe(const StoredEntry& stored) {
    Json json = {
        {"path", stored.path}, {"arch", stored.arch}, {"bytes", stored.bytes}, {"modified", utc(stored.mtime)}};
    if (!stored.entry) {
        json["error"] = stored.entry.error().message;
        return json;
    }
    const Json metadata = parse_metadata(stored);
    json["key"] = hex(stored.entry->key);
    json["compiler"] = hex(stored.entry->compiler);
    json["cubin_bytes"] = stored.entry->cubin.size();
    json["problem"] = request_field(metadata, "problem");
    json["variant"] = request_field(metadata, "variant");
    return json;
}

Result<Report> list(const std::string& cache_dir) {
    const auto root = cache_root(cache_dir);
    if (!root) return root.error();
    Report report;
    Json entries = Json::array();
    std::uint64_t bytes = 0;
    for (const StoredEntry& stored : entries_of(*root)) {
        bytes += stored.bytes;
        Json entry = describe(stored);
        if (stored.entry) {
            report.text += fmt::format("{}  {:<9} {:>8}  {}  {}; {}\n", entry["key"].get<std::string>(), stored.arch,
                                       stored.bytes, entry["modified"].get<std::string>(),
                                       entry["problem"].get<std::string>(), entry["variant"].get<std::string>());
        } else {
            report.text += fmt::format("{:<32}  {:<9} {:>8}  {}  {}: {}\n", "BAD", stored.arch, stored.bytes,
                                       entry["modified"].get<std::string>(), stored.path, stored.entry.error().message);
        }
        entries.push_back(std::move(entry));
    }
    report.text += fmt::format("{} entries, {} bytes in {}\n", entries.size(), bytes, *root);
    report.json = {{"command", "cache list"}, {"root", *root}, {"bytes", bytes}, {"entries", std::move(entries)}};
    return report;
}

Result<Report> show(const std::string& cache_dir, const std::string& wanted) {
    const auto root = cache_root(cache_dir);
    if (!root) return root.error();
    std::error_code ignored;
    const std::string path = std::filesystem::absolute(wanted, ignored).lexically_normal().string();
    std::vector<StoredEntry> found;
    for (StoredEntry& stored : entries_of(*root)) {
        const bool by_key = stored.entry && !wanted.empty() && hex(stored.entry->key).starts_with(wanted);
        if (by_key || stored.path == path || stored.path == wanted) found.push_back(std::move(stored));
    }
    if (found.empty()) {
        return failure(fmt::format("no entry '{}' in {}: see normquant cache list", wanted, *root));
    }
    // One key may have been compiled by several NVRTCs; all of them are shown.
    for (const StoredEntry& stored : found) {
        if (found.front().entry && stored.entry && stored.entry->key != found.front().entry->key) {
            return usage_error(
                fmt::format("'{}' begins the keys of {} entries: give more digits", wanted, found.size()));
        }
    }
    Report report;
    Json entries = Json::array();
    for (const StoredEntry& stored : found) {
        Json entry = describe(stored);
        entry["metadata"] = parse_metadata(stored);
        for (const auto& [name, value] : entry.items()) {
            report.text +=
                fmt::format("{:<12}{}\n", name, value.is_string() ? value.get<std::string>() : value.dump(2));
        }
        if (!stored.entry) report.exit_code = kFailed;
        entries.push_back(std::move(entry));
    }
    report.json = {{"command", "cache show"}, {"root", *root}, {"entries", std::move(entries)}};
    return report;
}

Result<Report> verify(const std::string& cache_dir) {
    const auto root = cache_root(cache_dir);
    if (!root) return root.error();
    Report report;
    Json bad = Json::array();
    std::uint64_t sound = 0;
    for (const StoredEntry& stored : entries_of(*root)) {
        if (stored.entry) {
            ++sound;
            continue;
        }
        report.exit_code = kFailed;
        report.text += fmt::format("BAD {}: {}\n", stored.path, stored.entry.error().message);
        bad.push_back(describe(stored));
    }
    report.text += fmt::format("{} sound, {} bad in {}\n", sound, bad.size(), *root);
    report.json = {{"command", "cache verify"}, {"root", *root}, {"sound", sound}, {"bad", std::move(bad)}};
    return report;
}

Result<Report> path(const std::string& cache_dir) {
    const auto root = cache_root(cache_dir);
    if (!root) return root.error();
    Report report;
    report.text = *root + "\n";
    report.json = {{"command", "cache path"}, {"root", *root}};
    return report;
}

}  // namespace

std::vector<Command> add_cache(CLI::App& parent) {
    CLI::App* cache = parent.add_subcommand("cache", "Look at the kernel cache");
    cache->require_subcommand(0, 1);
    cache->footer(kFooter);
    auto cache_dir = std::make_shared<std::string>();
    auto wanted = std::make_shared<std::string>();
    const auto add = [&](const char* name, const char* help) {
        CLI::App* app = cache->add_subcommand(name, help);
        app->add_option("--cache-dir", *cache_dir, kCacheDirHelp);
        app->footer(kFooter);
        return app;
    };
    std::vector<Command> commands;
    commands.push_back(
        {add("list", "Every entry: key, target, bytes, age, problem"), [cache_dir] { return list(*cache_dir); }});
    CLI::App* shown = add("show", "Everything an entry says about itself");
    shown->add_option("ENTRY", *wanted, "The beginning of a key, or a path")->required();
    commands.push_back({shown, [cache_dir, wanted] { return show(*cache_dir, *wanted); }});
    commands.push_back({add("verify", "Read every entry in full: lengths, checksum, ELF bounds"),
                        [cache_dir] { return verify(*cache_dir); }});
    commands.push_back({add("path", "Print the root directory"), [cache_dir] { return path(*cache_dir); }});
    return commands;
}

}  // namespace nq::cli
