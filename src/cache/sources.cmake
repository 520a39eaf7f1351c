set(sources bundle.cpp cache.cpp entry.cpp eviction.cpp key.cpp lock.cpp statistics.cpp store.cpp trust.cpp)
