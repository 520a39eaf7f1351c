set(sources compile.cpp embedded.cpp source.cpp)
