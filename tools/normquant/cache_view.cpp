#include "cache_view.h"

#include "errors.h"
#include "libraries.h"
#include "options.h"
#include "printable.h"
#include "units.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace nq::cli {
namespace {

bool is_hex(std::string_view text) { return text.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

std::string lower_case(std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

std::string absolute(const std::string& path) {
    std::error_code ignored;
    return std::filesystem::absolute(path, ignored).lexically_normal().string();
}

void keep_message(std::uint32_t, const char* message, void* payload) {
    static_cast<std::vector<std::string>*>(payload)->emplace_back(message);
}

Error no_cache() {
    return failure("there is no disk cache: NORMQUANT_CACHE_DIR is empty, or no home directory is known");
}

bool is_directory(const std::string& path) {
    struct stat info {};
    return system_files().lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

const char* name(Place::Kind kind) {
    switch (kind) {
        case Place::Kind::root:
            return "root";
        case Place::Kind::directory:
            return "directory";
        case Place::Kind::bundle:
            break;
    }
    return "bundle";
}

CacheView::CacheView(ContextConfig config) : config_(std::move(config)), log_(keep_message, &messages_, NQ_LOG_INFO) {}

void add_view_options(CLI::App& app, ViewOptions& options) {
    add_cache_dir(app, options.cache_dir);
    app.add_option("--bundle", options.bundle, "Look at this bundle instead")->excludes("--cache-dir");
}

Result<std::unique_ptr<CacheView>> CacheView::open_as_is(const ViewOptions& options, Access access) {
    if (!options.bundle.empty()) return open_bundle(options.bundle);
    auto config = environment_config();
    if (!config) return config.error();
    if (!options.cache_dir.empty()) config->cache.root = options.cache_dir;
    return create(*std::move(config), access);
}

Result<std::unique_ptr<CacheView>> CacheView::open(const ViewOptions& options, Access access) {
    auto view = open_as_is(options, access);
    if (!view) return view.error();
    if ((*view)->places_.empty()) return no_cache();
    for (const Place& place : (*view)->places_) {
        if (!place.fault) continue;
        if (place.kind == Place::Kind::root) return failure(place.fault->message);
        note(fmt::format("not used: {}", place.fault->message));
    }
    for (const DirectoryFault& fault : (*view)->not_read_)
        note(fmt::format("not read: {}: {}", fault.path, fault.error));
    return view;
}

std::unique_ptr<CacheView> CacheView::create(ContextConfig config, Access access) {
    std::unique_ptr<CacheView> view(new CacheView(std::move(config)));
    for (const std::string& layer : view->config_.cache.layers) view->add_layer(layer);
    if (!view->config_.cache.root.empty()) {
        StoreOptions options = view->config_.cache.store;
        options.read_only |= access == Access::look;
        view->places_.push_back(view->directory(Place::Kind::root, view->config_.cache.root, options));
        view->root_path_ = view->places_.back().path;
    }
    view->messages_.clear();
    return view;
}

Result<std::unique_ptr<CacheView>> CacheView::open_bundle(const std::string& path) {
    auto config = environment_config();
    if (!config) return config.error();
    std::unique_ptr<CacheView> view(new CacheView(*std::move(config)));
    auto bundle = Bundle::open(system_files(), path, /*shared=*/true);
    if (!bundle) return bundle.error();
    view->places_.push_back({Place::Kind::bundle, path, nullptr, *std::move(bundle), std::nullopt});
    return view;
}

Place CacheView::directory(Place::Kind kind, const std::string& path, const StoreOptions& options) {
    auto store = std::make_unique<Store>(path, options, system_files(), log_, counters_);
    Place place{kind, store->root(), nullptr, std::nullopt, std::nullopt};
    if (const Outcome trusted = store->check(); !trusted) place.fault = trusted.error();
    for (DirectoryFault& fault : directory_faults(place.path, /*written=*/false)) {
        const bool whole = fault.path == place.path || fault.path == place.path + "/v1";
        // One that can be passed through serves whoever knows the names in it, as a context does.
        if (!whole || (is_directory(fault.path) && ::access(fault.path.c_str(), X_OK) == 0)) {
            not_read_.push_back(std::move(fault));
        } else if (!place.fault) {
            place.fault = Error{NQ_ERR_CACHE_IO, fmt::format("cache directory {}: {}", fault.path, fault.error), {}};
        }
    }
    place.store = std::move(store);
    return place;
}

void CacheView::add_layer(const std::string& path) {
    const bool shared = config_.cache.store.shared;
    if (is_directory(path)) {
        places_.push_back(directory(Place::Kind::directory, path, StoreOptions{.read_only = true, .shared = shared}));
        return;
    }
    Place place{Place::Kind::bundle, path, nullptr, std::nullopt, std::nullopt};
    if (auto bundle = Bundle::open(system_files(), path, shared)) {
        place.bundle = *std::move(bundle);
    } else {
        place.fault = bundle.error();
    }
    places_.push_back(std::move(place));
}

std::string CacheView::summary() const {
    const std::size_t layers = places_.size() - (root_path_.empty() ? 0 : 1);
    const std::string text = root_path_.empty() ? "" : root_path_;
    if (layers == 0) return text;
    if (places_.size() == 1) return places_.front().path;
    return fmt::format("{}{}{} layer{}", text, text.empty() ? "" : " and ", layers, layers == 1 ? "" : "s");
}

Result<Store*> CacheView::writable_root() {
    if (root_path_.empty()) return no_cache();
    const Place& root = places_.back();
    if (root.store->options().read_only) {
        return failure(fmt::format("{} may not be changed: NORMQUANT_CACHE_READONLY is on", root_path_));
    }
    return root.store.get();
}

Json CacheView::places_json() const {
    Json places = Json::array();
    for (const Place& place : places_) {
        places.push_back({{"path", place.path}, {"kind", name(place.kind)}});
        if (place.fault) places.back()["error"] = place.fault->message;
    }
    return places;
}

Json CacheView::not_read_json() const {
    Json faults = Json::array();
    for (const DirectoryFault& fault : not_read_) faults.push_back({{"path", fault.path}, {"error", fault.error}});
    return faults;
}

void CacheView::visit(const std::function<void(Item)>& visitor) const {
    for (const Place& place : places_) {
        if (place.store != nullptr && !place.fault) {
            place.store->visit([&](StoredEntry stored) {
                std::string id =
                    stored.entry ? hex(stored.entry->key) + "-" + hex(stored.entry->compiler) : id_of_path(stored.path);
                visitor({&place, std::move(stored), std::move(id)});
            });
        }
        if (!place.bundle) continue;
        struct stat info {};
        const bool known = system_files().lstat(place.path.c_str(), &info) == 0;
        for (const BundleItem& item : place.bundle->items()) {
            visitor({&place,
                     {place.path, item.arch, item.bytes, known ? info.st_mtime : 0, place.bundle->read(item)},
                     hex(item.key) + "-" + hex(item.compiler)});
        }
    }
}

Result<std::vector<Item>> CacheView::find(const std::string& wanted) const {
    const std::string path = absolute(wanted), digits = lower_case(wanted);
    std::vector<Item> found;
    std::size_t others = 0;  // of another key than the first
    visit([&](Item item) {
        const bool by_path = item.place->store != nullptr && (item.stored.path == path || item.stored.path == wanted);
        const bool by_id = !wanted.empty() && item.id.starts_with(digits);
        if (!by_path && !by_id) return;
        if (found.empty() || item.id.substr(0, 32) == found.front().id.substr(0, 32)) {
            found.push_back(std::move(item));
        } else {
            ++others;
        }
    });
    if (found.empty()) return failure(fmt::format("no entry '{}' in {}: see normquant cache list", wanted, summary()));
    if (others == 0) return found;
    return usage_error(
        fmt::format("'{}' begins the keys of {} entries: give more digits", wanted, found.size() + others));
}

std::string id_of_path(const std::string& path) {
    const std::filesystem::path file(path);
    const std::string id = file.parent_path().filename().string() + file.stem().string();
    if (id.size() != 49 || id[32] != '-' || !is_hex(id.substr(0, 32)) || !is_hex(id.substr(33))) return "";
    return id;
}

Json describe(const Item& item, const Json& metadata) {
    const StoredEntry& stored = item.stored;
    Json json = {
        {"path", stored.path},   {"place", name(item.place->kind)},    {"arch", stored.arch},
        {"bytes", stored.bytes}, {"modified", utc_text(stored.mtime)}, {"age_seconds", seconds_now() - stored.mtime}};
    if (!stored.entry) {
        if (!item.id.empty()) json["key"] = item.id.substr(0, 32);
        json["error"] = stored.entry.error().message;
        return json;
    }
    json["key"] = hex(stored.entry->key);
    json["compiler"] = hex(stored.entry->compiler);
    json["cubin_bytes"] = stored.entry->cubin.size();
    json["problem"] = request_field(metadata, "problem");
    json["variant"] = request_field(metadata, "variant");
    return json;
}

Json describe(const Item& item) {
    return describe(item, item.stored.entry ? parse_metadata(item.stored.entry->metadata) : Json(nullptr));
}

}  // namespace nq::cli
