// The disk cache as the commands look at it: the layers, then the root, as a context would search them.
#pragma once

#include "cache/bundle.h"
#include "cache/counters.h"
#include "cache/store.h"
#include "inventory.h"
#include "metadata.h"
#include "runtime/context.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace nq::cli {

struct Place {
    enum class Kind { root, directory, bundle };
    Kind kind = Kind::root;
    std::string path;
    std::unique_ptr<Store> store;  // of the root and of a directory
    std::optional<Bundle> bundle;
    std::optional<Error> fault;  // why a context passes it over
};
const char* name(Place::Kind kind);

// One entry of a place.
struct Item {
    const Place* place;
    StoredEntry stored;  // in a bundle, path and mtime are the bundle's
    std::string id;      // "<32 hex of key>-<32 hex of compiler>"; of a bad file as much as its name tells
};

// Which cache a command is about.
struct ViewOptions {
    std::string cache_dir;  // "" for what the environment says
    std::string bundle;     // instead of it
};
void add_view_options(CLI::App& app, ViewOptions& options);  // --cache-dir, --bundle

enum class Access { look, change };  // look: nothing at all is written, not even the time of the last use

class CacheView {
public:
    // An error where there is no cache, or where a context would not use the root: whether a command looks at it or
    // changes it, it says the same and fails. Layers that cannot be used, and directories that cannot be read, are
    // noted on stderr, and the rest is looked at.
    static Result<std::unique_ptr<CacheView>> open(const ViewOptions& options, Access access);
    // As a context would find it, whatever that is.
    static Result<std::unique_ptr<CacheView>> open_as_is(const ViewOptions& options, Access access);
    static std::unique_ptr<CacheView> create(ContextConfig config, Access access);

    const ContextConfig& config() const { return config_; }
    const std::vector<Place>& places() const { return places_; }
    const std::string& root_path() const { return root_path_; }  // "" for none
    bool layered() const { return places_.size() > 1; }
    std::string summary() const;  // "/root and 2 layers"

    // The root that may be written, or why there is none.
    Result<Store*> writable_root();
    // Directories whose entries cannot be seen.
    const std::vector<DirectoryFault>& not_read() const { return not_read_; }
    // As JSON: places with their faults, and not_read.
    Json places_json() const;
    Json not_read_json() const;

    // One after the other, in no more memory than the largest takes; of a bundle that cannot be opened, none.
    void visit(const std::function<void(Item)>& visitor) const;
    // All of one kernel that `wanted` names: the beginning of an id, or the path of a file.
    Result<std::vector<Item>> find(const std::string& wanted) const;

    // What the store has said since the last call.
    std::vector<std::string> take_messages() { return std::exchange(messages_, {}); }

private:
    explicit CacheView(ContextConfig config);
    // A bundle by itself, whoever may write it.
    static Result<std::unique_ptr<CacheView>> open_bundle(const std::string& path);
    void add_layer(const std::string& path);
    Place directory(Place::Kind kind, const std::string& path, const StoreOptions& options);

    const ContextConfig config_;
    std::vector<std::string> messages_;
    Logger log_;
    Counters counters_;
    std::string root_path_;
    std::vector<Place> places_;
    std::vector<DirectoryFault> not_read_;
};

// The digits that the name of an entry's file has: "<32 hex>-<16 hex>"; "" if it is not named as one.
std::string id_of_path(const std::string& path);

// path, place, arch, bytes, modified, age; and of a good one key, compiler, problem, variant; else the error.
Json describe(const Item& item, const Json& metadata);
Json describe(const Item& item);

}  // namespace nq::cli
