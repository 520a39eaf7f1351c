// Concurrent calls for one key do the work once and share the outcome. Nothing is remembered afterwards.
#pragma once

#include <future>
#include <map>
#include <mutex>

namespace nq {

// Value is copied to every waiter.
template <class Key, class Value>
class SingleFlight {
public:
    // No lock is held while `make` runs; an exception of it reaches every waiter.
    template <class Make>
    Value run(const Key& key, Make make) {
        std::promise<Value> promise;
        {
            std::unique_lock lock(mutex_);
            if (const auto flight = flights_.find(key); flight != flights_.end()) {
                const std::shared_future<Value> outcome = flight->second;
                lock.unlock();
                return outcome.get();
            }
            flights_.emplace(key, promise.get_future().share());
        }
        try {
            Value value = make();
            promise.set_value(value);
            land(key);
            return value;
        } catch (...) {
            land(key);
            promise.set_exception(std::current_exception());
            throw;
        }
    }

private:
    void land(const Key& key) {
        const std::lock_guard lock(mutex_);
        flights_.erase(key);
    }

    std::mutex mutex_;
    std::map<Key, std::shared_future<Value>> flights_;
};

}  // namespace nq
