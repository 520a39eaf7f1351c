set(sources compile.cpp cubin_info.cpp embedded.cpp source.cpp)
