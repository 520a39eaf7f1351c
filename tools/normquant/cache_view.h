// The disk cache as the commands look at it: the layers, then the root, as a context would search them.
#pragma once

#include "cache/bundle.h"
#include "cache/counters.h"
#include "cache/store.h"
#include "metadata.h"
#include "runtime/context.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

enum class Access { look, change };  // look: nothing at all is written, not even the time of the last use

class CacheView {
public:
    // cache_dir: "" for what the environment says. A layer that cannot be used has a fault, and so has the root.
    static Result<std::unique_ptr<CacheView>> open(const std::string& cache_dir, Access access);
    static std::unique_ptr<CacheView> create(ContextConfig config, Access access);
    // A bundle by itself, whoever may write it.
    static Result<std::unique_ptr<CacheView>> open_bundle(const std::string& path);

    const ContextConfig& config() const { return config_; }
    const std::vector<Place>& places() const { return places_; }
    const std::string& root_path() const { return root_path_; }  // "" for none
    bool layered() const { return places_.size() > 1; }
    std::string summary() const;  // "/root and 2 layers"

    // Is there anything to look at?
    Outcome check_any() const;
    // The root that may be written, or why there is none.
    Result<Store*> writable_root();

    // One after the other, in no more memory than the largest takes; of a bundle that cannot be opened, none.
    void visit(const std::function<void(Item)>& visitor) const;
    // All of one kernel that `wanted` names: the beginning of an id, or the path of a file.
    Result<std::vector<Item>> find(const std::string& wanted) const;

    // What the store has said since the last call.
    std::vector<std::string> take_messages() { return std::exchange(messages_, {}); }

private:
    explicit CacheView(ContextConfig config);
    void add_layer(const std::string& path);

    const ContextConfig config_;
    std::vector<std::string> messages_;
    Logger log_;
    Counters counters_;
    std::string root_path_;
    std::vector<Place> places_;
};

// The digits that the name of an entry's file has: "<32 hex>-<16 hex>"; "" if it is not named as one.
std::string id_of_path(const std::string& path);

// path, place, arch, bytes, modified, age; and of a good one key, compiler, problem, variant; else the error.
Json describe(const Item& item, const Json& metadata);
Json describe(const Item& item);

}  // namespace nq::cli
