// normquant cache list, show, verify, path.
#include "cache_commands.h"
#include "cache_filter.h"
#include "cache_view.h"
#include "errors.h"
#include "jit/cubin_info.h"
#include "options.h"
#include "printable.h"
#include "units.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>

namespace nq::cli {
namespace {

// ---- list ---------------------------------------------------------------------------------------------------------

constexpr const char* kListFooter =
    R"(One line an entry: key, target, bytes, time since the last use, problem and plan. Every entry is read and verified; one that
is not sound is shown as BAD, with the reason, whatever --hidden says: it does not tell its problem. The age is renewed by a
hit, at most once an hour; eviction goes by it. In a bundle it is the file's.

Examples:
  normquant cache list
  normquant cache list --arch sm_90,sm_100f --hidden 7168
  normquant cache list --older-than 30d --sort age --reverse
  normquant cache list --bundle kernels.nqb --json
Exit codes: 0 done, 1 no cache, 2 bad option.)";

struct ListOptions {
    ViewOptions view;
    FilterOptions filter;
    std::string sort = "arch";
    bool reverse = false;
};

// By the field of a row; where it is equal, or a bad entry has none, by path.
struct Order {
    const char* field;
    bool operator()(const Json& a, const Json& b) const {
        const auto left = a.find(field), right = b.find(field);
        if (left == a.end() || right == b.end()) return left == a.end() && (right != b.end() || a["path"] < b["path"]);
        if (*left != *right) return *left < *right;
        return a["path"] < b["path"];
    }
};

struct Column {
    const char* name;
    const char* field;
};
constexpr Column kColumns[] = {
    {"age", "age_seconds"}, {"size", "bytes"}, {"arch", "arch"}, {"problem", "problem"}, {"key", "key"}};

Names column_names() {
    Names names;
    for (const Column& column : kColumns) names.push_back(column.name);
    return names;
}

Result<Order> order_of(const std::string& sort) {
    for (const auto& [column, field] : kColumns) {
        if (sort == column) return Order{field};
    }
    return one_of("--sort", sort, column_names()).error();
}

std::string row_text(const Json& row, bool layered) {
    const bool bad = row.contains("error");
    const std::string what =
        bad ? fmt::format("{}: {}", row["path"].get<std::string>(), row["error"].get<std::string>())
            : fmt::format("{}; {}", row["problem"].get<std::string>(), row["variant"].get<std::string>());
    return fmt::format("{:<32}  {:<9} {:>8} {:>5}  {}{}\n", bad ? "BAD" : row["key"].get<std::string>(),
                       printable(row["arch"].get<std::string>()), row["bytes"].get<std::uint64_t>(),
                       age_text(row["age_seconds"].get<std::int64_t>()),
                       layered ? fmt::format("{:<9}  ", row["place"].get<std::string>()) : "", printable(what));
}

Result<Report> list(const ListOptions& options) {
    const auto filter = Filter::parse(options.filter);
    if (!filter) return filter.error();
    const auto before = order_of(options.sort);
    if (!before) return before.error();
    const auto view = CacheView::open(options.view, Access::look);
    if (!view) return view.error();

    std::vector<Json> rows;
    (*view)->visit([&](const Item& item) {
        Json row = describe(item);
        if (filter->accepts(row)) rows.push_back(std::move(row));
    });
    std::ranges::stable_sort(rows, *before);
    if (options.reverse) std::ranges::reverse(rows);

    const bool layered = (*view)->layered();
    Report report;
    if (!rows.empty())
        report.text = fmt::format("{:<32}  {:<9} {:>8} {:>5}  {}{}\n", "KEY", "TARGET", "BYTES", "AGE",
                                  layered ? "WHERE      " : "", "PROBLEM; PLAN");
    std::uint64_t bytes = 0;
    std::size_t bad = 0;
    Json entries = Json::array();
    for (Json& row : rows) {
        bad += row.contains("error") ? 1 : 0;
        bytes += row["bytes"].get<std::uint64_t>();
        report.text += row_text(row, layered);
        entries.push_back(std::move(row));
    }
    report.text += fmt::format("{} entries, {} bytes{} in {}\n", entries.size(), bytes,
                               bad == 0 ? "" : fmt::format(", {} bad", bad), printable((*view)->summary()));
    report.json = {{"command", "cache list"},
                   {"root", (*view)->root_path()},
                   {"places", (*view)->places_json()},
                   {"not_read", (*view)->not_read_json()},
                   {"bytes", bytes},
                   {"bad", bad},
                   {"entries", std::move(entries)}};
    return report;
}

// ---- show ---------------------------------------------------------------------------------------------------------

constexpr const char* kShowFooter =
    R"(ENTRY is any unique beginning of a key, or the path of a file. Of a key that several NVRTCs have compiled, all are shown.

  --all   also what the entry's metadata says: every field of its key, its plan, its compiler. --json always has it.

Examples:
  normquant cache show 3fa94c
  normquant cache show 3fa94c --all --bundle kernels.nqb
  normquant cache show 3fa94c --json | jq '.entries[0].metadata.request'
Exit codes: 0 done, 1 no cache, no such entry or a bad one, 2 bad option or an ambiguous key.)";

void append_fields(std::string& text, const std::string& prefix, const Json& value) {
    if (value.is_object()) {
        for (const auto& [label, field] : value.items()) {
            append_fields(text, prefix.empty() ? label : prefix + "." + label, field);
        }
        return;
    }
    std::string line =
        value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (value.is_array()) {
        line.clear();
        for (const Json& element : value) {
            line += (line.empty() ? "" : " ") + (element.is_string() ? element.get<std::string>() : element.dump());
        }
    }
    while (!line.empty() && line.back() == '\n') line.pop_back();
    text += fmt::format("  {:<31} {}\n", printable(prefix), line.empty() ? "-" : printable(line));
}

struct ShowOptions {
    ViewOptions view;
    std::string wanted;
    bool all = false;
};

Result<Report> show(const ShowOptions& options) {
    const auto view = CacheView::open(options.view, Access::look);
    if (!view) return view.error();
    const auto found = (*view)->find(options.wanted);
    if (!found) return found.error();
    Report report;
    Json entries = Json::array();
    for (const Item& item : *found) {
        const Json metadata = item.stored.entry ? parse_metadata(item.stored.entry->metadata) : Json(nullptr);
        Json entry = describe(item, metadata);
        if (item.stored.entry) {
            // From the cubin itself: true whoever wrote the metadata.
            const CubinInfo info = cubin_info(item.stored.entry->cubin);
            entry["registers"] = info.registers;
            entry["nvrtc_build"] = info.toolkit;
            entry["source"] = request_field(metadata, "source");
        } else {
            report.exit_code = kFailed;
        }
        report.text +=
            fmt::format("{} for {}\n", entry.contains("error") ? "BAD entry" : entry["key"].get<std::string>(),
                        printable(item.stored.arch));
        append_fields(report.text, "", entry);
        entry["metadata"] = metadata;
        if (options.all && !metadata.is_null()) append_fields(report.text, "metadata", metadata);
        entries.push_back(std::move(entry));
    }
    report.json = {{"command", "cache show"}, {"root", (*view)->root_path()}, {"entries", std::move(entries)}};
    return report;
}

// ---- verify -------------------------------------------------------------------------------------------------------

constexpr const char* kVerifyFooter =
    R"(Reads every entry of the layers and the root in full: lengths, checksum, ELF bounds, name, owner and mode. A bad entry is
harmless, as it is a miss when it is asked for, and made again.

  --repair   moves bad entries of the root to <root>/v1/bad, where a few are kept for whoever looks into the damage, and
             removes the others. Layers are not changed.

Examples:
  normquant cache verify && echo sound
  normquant cache verify --repair
  normquant cache verify --bundle kernels.nqb
Exit codes: 0 all is sound, or was repaired; 1 no cache, or something bad is left; 2 bad option.)";

struct VerifyOptions {
    ViewOptions view;
    bool repair = false;
};

Result<Report> verify(const VerifyOptions& options) {
    const bool repair = options.repair;
    if (repair && !options.view.bundle.empty())
        return usage_error(
            fmt::format("--repair changes the root; --bundle '{}' is only looked at", options.view.bundle));
    const auto view = CacheView::open(options.view, repair ? Access::change : Access::look);
    if (!view) return view.error();
    Store* root = nullptr;
    if (repair) {
        const auto writable = (*view)->writable_root();
        if (!writable) return writable.error();
        root = *writable;
    }
    Report report;
    Json bad = Json::array();
    std::uint64_t sound = 0;
    std::size_t left = 0;
    (*view)->visit([&](const Item& item) {
        if (item.stored.entry) {
            ++sound;
            return;
        }
        Json entry = describe(item);
        report.text +=
            fmt::format("BAD {}: {}\n", printable(item.stored.path), printable(item.stored.entry.error().message));
        bool repaired = false;
        if (root != nullptr && item.place->store.get() == root) {
            repaired = root->repair(item.stored);
            for (const std::string& message : (*view)->take_messages()) {
                entry["repair"] = message;
                report.text += fmt::format("    {}: {}\n", repaired ? "repaired" : "not repaired", printable(message));
            }
        }
        entry["repaired"] = repaired;
        left += repaired ? 0 : 1;
        bad.push_back(std::move(entry));
    });
    const std::size_t bad_left = left;
    Json places = (*view)->places_json();
    for (const Json& place : places) left += place.contains("error") ? 1 : 0;
    left += (*view)->not_read().size();
    report.text += fmt::format("{} sound, {} bad{} in {}\n", sound, bad.size(),
                               repair ? fmt::format(", {} of them left", bad_left) : "", printable((*view)->summary()));
    report.exit_code = left == 0 ? kOk : kFailed;
    report.json = {{"command", "cache verify"},
                   {"root", (*view)->root_path()},
                   {"places", std::move(places)},
                   {"not_read", (*view)->not_read_json()},
                   {"sound", sound},
                   {"left", left},
                   {"bad", std::move(bad)}};
    return report;
}

// ---- path ---------------------------------------------------------------------------------------------------------

constexpr const char* kPathFooter = R"(Example:
  ls -l $(normquant cache path)/v1
Exit codes: 0 done, 1 no cache, 2 bad option.)";

Result<Report> path(const std::string& cache_dir) {
    const auto context = create_context(cache_dir);
    if (!context) return context.error();
    const std::string root = nq_context_cache_dir(context->get());
    if (root.empty())
        return failure("there is no disk cache: NORMQUANT_CACHE_DIR is empty, or no home directory is known");
    Report report;
    report.text = root + "\n";
    report.json = {{"command", "cache path"}, {"root", root}};
    return report;
}

}  // namespace

Command add_cache_list(CLI::App& cache) {
    auto options = std::make_shared<ListOptions>();
    CLI::App* app = cache.add_subcommand("list", "Every entry: key, target, bytes, age, problem");
    add_kernel_filter(*app, options->filter);
    add_age_filter(*app, options->filter);
    offer(app->add_option("--sort", options->sort, "age, size, arch, problem or key, the least first")->capture_default_str(),
          column_names());
    app->add_flag("--reverse", options->reverse, "The greatest first");
    add_view_options(*app, options->view);
    app->footer(kListFooter);
    return {app, [options] { return list(*options); }};
}

Command add_cache_show(CLI::App& cache) {
    auto options = std::make_shared<ShowOptions>();
    CLI::App* app = cache.add_subcommand("show", "What an entry says about itself");
    app->add_option("ENTRY", options->wanted, "The beginning of a key, or a path")->required();
    app->add_flag("--all", options->all, "Its metadata as well");
    add_view_options(*app, options->view);
    app->footer(kShowFooter);
    return {app, [options] { return show(*options); }};
}

Command add_cache_verify(CLI::App& cache) {
    auto options = std::make_shared<VerifyOptions>();
    CLI::App* app = cache.add_subcommand("verify", "Read every entry in full: lengths, checksum, ELF bounds");
    app->add_flag("--repair", options->repair, "Set bad entries of the root aside");
    add_view_options(*app, options->view);
    app->footer(kVerifyFooter);
    return {app, [options] { return verify(*options); }};
}

Command add_cache_path(CLI::App& cache) {
    auto cache_dir = std::make_shared<std::string>();
    CLI::App* app = cache.add_subcommand("path", "Print the root directory");
    add_cache_dir(*app, *cache_dir);
    app->footer(kPathFooter);
    return {app, [cache_dir] { return path(*cache_dir); }};
}

}  // namespace nq::cli
