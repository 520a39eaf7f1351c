// The disk cache as the runtime sees it: read-only layers (directories and bundles), then the read-write root; and the
// one place where processes agree on who compiles.
#pragma once

#include "cache/bundle.h"
#include "cache/counters.h"
#include "cache/entry.h"
#include "cache/store.h"
#include "support/log.h"
#include "support/result.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <semaphore>
#include <string>
#include <vector>

namespace nq {

struct CacheConfig {
    std::vector<std::string> layers;  // bundles and directories, searched in this order, never written
    std::string root;                 // "" for none
    StoreOptions store;
    std::chrono::milliseconds lock_timeout{30000};
    unsigned compile_threads = 1;  // compiles at a time
};

class Cache {
public:
    // A layer that cannot be used is warned of and passed over.
    Cache(const CacheConfig& config, const FileOps& files, Logger& log, Counters& counters);

    Store* root() { return root_.get(); }  // nullptr: no disk cache
    const Store* root() const { return root_.get(); }
    // Where find() looks, and what is wrong with a layer: for messages.
    std::string places() const;

    // The first layer that is a bundle and can be used; "" for none.
    std::string first_bundle() const;

    // The bundles that have entries, none of which is `ours`. Read once: later calls get the same answer.
    const std::vector<std::string>& foreign_bundles(const std::function<bool(const Entry&)>& ours);

    // Layers are matched on the request key alone; the root on the compiler as well, unless none is given. Counts a hit.
    std::optional<Entry> find(const std::string& arch, const RequestKey& key, const std::optional<CompilerId>& compiler);

    struct Obtained {
        Entry entry;
        bool cached = false;
        Outcome stored = Unit{};  // why a new entry could not be put into the root
    };
    enum class Layers { search, skip };
    // What there is, else what `make` makes: once among all processes that share the root and all that is well. A
    // process that holds the lock for too long, and a file system without locks, cost a second compile and no more.
    // Layers may have entries of any compiler: `skip` is for one that the driver has refused.
    Result<Obtained> obtain(const std::string& arch, const RequestKey& key, const CompilerId& compiler,
                            const std::function<Result<Entry>()>& make, Layers layers = Layers::search);

private:
    struct Layer {
        std::string path;
        std::unique_ptr<Store> directory;
        std::optional<Bundle> bundle;
        std::string fault;  // it has neither
        bool warned = false;
    };
    class Slot;

    void open_layer(const std::string& path, bool shared, const FileOps& files);
    std::optional<Entry> find_in_bundle(Layer& layer, const RequestKey& key);
    Result<Obtained> make_and_store(const std::string& arch, const std::function<Result<Entry>()>& make);
    std::optional<Entry> find_in_root(const std::string& arch, const RequestKey& key,
                                      const std::optional<CompilerId>& compiler);

    Logger& log_;
    Counters& counters_;
    const std::chrono::milliseconds lock_timeout_;
    std::counting_semaphore<> slots_;
    std::mutex warned_mutex_;  // guards Layer::warned
    std::vector<Layer> layers_;
    std::once_flag foreign_known_;
    std::vector<std::string> foreign_;
    std::unique_ptr<Store> root_;
};

}  // namespace nq
