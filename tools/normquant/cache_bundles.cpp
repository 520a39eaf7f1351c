// normquant cache extract, export, import: kernels out of the cache and into it.
#include "cache/bundle.h"
#include "cache_commands.h"
#include "cache_filter.h"
#include "cache_view.h"
#include "errors.h"
#include "files.h"
#include "options.h"
#include "printable.h"
#include "units.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <map>

namespace nq::cli {
namespace {

// ---- extract ------------------------------------------------------------------------------------------------------

constexpr const char* kExtractFooter =
    R"(Writes the cubin of one entry, as NVRTC made it, for cuobjdump, nvdisasm or a debugger. Where several NVRTCs have compiled
the key, ENTRY is KEY-COMPILER, or the path of the file.

Examples:
  normquant cache extract 3fa94c -o kernel.cubin && cuobjdump -sass kernel.cubin
  normquant cache extract 3fa94c -o - --bundle kernels.nqb | sha256sum
Exit codes: 0 done, 1 no such entry, a bad one, or not written, 2 bad option or an ambiguous key.)";

struct ExtractOptions {
    ViewOptions view;
    std::string wanted;
    std::string out;
    bool force = false;
};

Outcome write_cubin(const std::string& path, const std::vector<unsigned char>& cubin, bool force) {
    if (force) return write_file(path, {}, cubin);
    const std::string_view bytes(reinterpret_cast<const char*>(cubin.data()), cubin.size());
    Outcome written = write_new_file(system_files(), path, bytes, 0666, Durability::durable);
    if (!written && ::access(path.c_str(), F_OK) == 0)
        return failure(fmt::format("{} exists: --force replaces it", path));
    return written;
}

Result<Report> extract(const ExtractOptions& options) {
    const bool to_stdout = options.out == "-";
    if (to_stdout && ::isatty(STDOUT_FILENO) != 0)
        return usage_error("-o - writes a binary file: redirect stdout, or name a file");
    const auto view = CacheView::open(options.view, Access::look);
    if (!view) return view.error();
    const auto found = (*view)->find(options.wanted);
    if (!found) return found.error();
    const Item& item = found->front();
    for (const Item& other : *found) {
        if (other.id != item.id)
            return usage_error(fmt::format("'{}' names kernels of several compilers: choose {} or {}", options.wanted,
                                           item.id, other.id));
    }
    if (!item.stored.entry) return failure(fmt::format("{}: {}", item.stored.path, item.stored.entry.error().message));
    const std::vector<unsigned char>& cubin = item.stored.entry->cubin;
    Report report;
    report.json = {{"command", "cache extract"}, {"id", item.id}, {"file", options.out}, {"cubin_bytes", cubin.size()}};
    if (to_stdout) {
        report.text.assign(cubin.begin(), cubin.end());
        return report;
    }
    if (const Outcome written = write_cubin(options.out, cubin, options.force); !written) return written.error();
    report.text = fmt::format("{} bytes of {} in {}\n", cubin.size(), item.id, printable(options.out));
    return report;
}

// ---- export -------------------------------------------------------------------------------------------------------

constexpr const char* kExportFooter =
    R"(Writes the kernels of the layers and the root into one file, which can be copied anywhere and used as it is: a process
with NORMQUANT_BUNDLES=FILE needs no NVRTC for them. A bundle that exists is replaced at once, or not at all. Bad entries are
left out and named on stderr, whatever --hidden says: they do not tell their problem.

Examples:
  normquant cache export kernels.nqb --arch sm_90,sm_100f --hidden 4096,7168
  NORMQUANT_BUNDLES=kernels.nqb NORMQUANT_JIT=off my-server
Exit codes: 0 done, 1 nothing to export or not written, 2 bad option, 3 bad entries were left out.)";

struct ExportOptions {
    std::string cache_dir;
    std::string bundle;
    FilterOptions filter;
};

using KernelId = std::pair<RequestKey, CompilerId>;

Result<Entry> read_again(const Place& place, const BundleItem& item) {
    if (place.bundle) {
        for (const BundleItem* candidate : place.bundle->find(item.key)) {
            if (candidate->compiler == item.compiler) return place.bundle->read(*candidate);
        }
    } else if (auto entry = place.store->load(item.arch, item.key, item.compiler)) {
        return *std::move(entry);
    }
    return failure(fmt::format("entry {} went away while the bundle was written: try again", hex(item.key)));
}

Result<Report> export_bundle(const ExportOptions& options) {
    const auto filter = Filter::parse(options.filter);
    if (!filter) return filter.error();
    const auto view = CacheView::open({options.cache_dir, ""}, Access::look);
    if (!view) return view.error();

    Report report;
    Json skipped = Json::array();
    const auto skip = [&](const std::string& path, const std::string& error) {
        skipped.push_back({{"path", path}, {"error", error}});
    };
    for (const Place& place : (*view)->places()) {
        if (place.fault) skip(place.path, place.fault->message);
    }
    for (const DirectoryFault& fault : (*view)->not_read()) skip(fault.path, fault.error);
    std::vector<BundleItem> items;
    std::map<KernelId, const Place*> where;
    (*view)->visit([&](const Item& item) {
        if (!filter->accepts(describe(item))) return;
        if (!item.stored.entry) {
            note(fmt::format("left out {}: {}", item.stored.path, item.stored.entry.error().message));
            return skip(item.stored.path, item.stored.entry.error().message);
        }
        const Entry& entry = *item.stored.entry;
        // The first place that has it is the one that serves it.
        if (where.emplace(KernelId{entry.key, entry.compiler}, item.place).second)
            items.push_back({entry.key, entry.compiler, item.stored.arch, 0, 0});
    });
    const std::string left_out = skipped.empty() ? "" : fmt::format(", {} bad left out", skipped.size());
    if (items.empty()) return failure(fmt::format("nothing to export in {}{}", (*view)->summary(), left_out));
    const std::size_t count = items.size();
    const Outcome written = write_bundle(system_files(), options.bundle, std::move(items), [&](const BundleItem& item) {
        return read_again(*where.at({item.key, item.compiler}), item);
    });
    if (!written) return written.error();
    struct stat info {};
    const std::uint64_t bytes =
        system_files().lstat(options.bundle.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
    report.exit_code = skipped.empty() ? kOk : kPartial;
    report.text = fmt::format("{} entries, {} in {}{}\n", count, size_text(bytes), printable(options.bundle), left_out);
    report.json = {{"command", "cache export"},
                   {"bundle", options.bundle},
                   {"exported", count},
                   {"bytes", bytes},
                   {"left_out", std::move(skipped)}};
    return report;
}

// ---- import -------------------------------------------------------------------------------------------------------

constexpr const char* kImportFooter =
    R"(Copies every sound entry of a bundle into the root. Not needed to use a bundle: name it in NORMQUANT_BUNDLES. In the root,
an entry serves processes that have the NVRTC it was made by, and those that have none or run with JIT off.

Example:
  normquant cache import kernels.nqb
Exit codes: 0 done, 1 nothing could be stored or the bundle is not to be trusted, 2 bad option or no bundle, 3 some entries
were bad or not stored.)";

struct ImportCounts {
    std::size_t imported = 0, present = 0, bad = 0, not_stored = 0;
};

Result<Report> import_bundle(const std::string& cache_dir, const std::string& path) {
    const auto opened = CacheView::open({cache_dir, ""}, Access::change);
    if (!opened) return opened.error();
    CacheView& view = **opened;
    const auto root = view.writable_root();
    if (!root) return root.error();
    const auto bundle = Bundle::open(system_files(), path, view.config().cache.store.shared);
    if (!bundle) return bundle.error();

    Report report;
    ImportCounts counts;
    Json failures = Json::array();
    const auto fail = [&](std::size_t& count, const BundleItem& item, const std::string& error) {
        ++count;
        note(fmt::format("left out {}: {}", hex(item.key), error));
        failures.push_back({{"key", hex(item.key)}, {"compiler", hex(item.compiler)}, {"error", error}});
    };
    for (const BundleItem& item : bundle->items()) {
        const auto entry = bundle->read(item);
        if (!entry) {
            fail(counts.bad, item, entry.error().message);
        } else if ((*root)->load(item.arch, item.key, item.compiler)) {
            ++counts.present;
        } else if (const Outcome stored = (*root)->publish(item.arch, *entry); !stored) {
            fail(counts.not_stored, item, stored.error().message);
        } else {
            ++counts.imported;
        }
    }
    if (counts.bad + counts.not_stored != 0) {
        report.exit_code = counts.imported + counts.present == 0 ? kFailed : kPartial;
    }
    report.text = fmt::format("{} imported, {} there already, {} bad, {} not stored in {}\n", counts.imported,
                              counts.present, counts.bad, counts.not_stored, printable(view.root_path()));
    report.json = {{"command", "cache import"},       {"bundle", path},
                   {"root", view.root_path()},        {"imported", counts.imported},
                   {"present", counts.present},       {"bad", counts.bad},
                   {"not_stored", counts.not_stored}, {"failures", std::move(failures)},
                   {"notes", view.take_messages()}};
    return report;
}

}  // namespace

Command add_cache_extract(CLI::App& cache) {
    auto options = std::make_shared<ExtractOptions>();
    CLI::App* app = cache.add_subcommand("extract", "Write the cubin of an entry to a file");
    app->add_option("ENTRY", options->wanted, "The beginning of a key, or a path")->required();
    app->add_option("-o,--out", options->out, "The file to write; - for stdout")->required();
    app->add_flag("--force", options->force, "Replace a file that exists");
    add_view_options(*app, options->view);
    app->footer(kExtractFooter);
    return {app, [options] { return extract(*options); }};
}

Command add_cache_export(CLI::App& cache) {
    auto options = std::make_shared<ExportOptions>();
    CLI::App* app = cache.add_subcommand("export", "Write kernels into one file, a bundle");
    app->add_option("BUNDLE", options->bundle, "The file to write")->required();
    add_kernel_filter(*app, options->filter);
    add_cache_dir(*app, options->cache_dir);
    app->footer(kExportFooter);
    return {app, [options] { return export_bundle(*options); }};
}

Command add_cache_import(CLI::App& cache) {
    auto cache_dir = std::make_shared<std::string>();
    auto bundle = std::make_shared<std::string>();
    CLI::App* app = cache.add_subcommand("import", "Copy the kernels of a bundle into the root");
    app->add_option("BUNDLE", *bundle, "The file to read")->required();
    add_cache_dir(*app, *cache_dir);
    app->footer(kImportFooter);
    return {app, [cache_dir, bundle] { return import_bundle(*cache_dir, *bundle); }};
}

}  // namespace nq::cli
