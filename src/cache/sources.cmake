set(sources entry.cpp key.cpp store.cpp)
