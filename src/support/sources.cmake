set(sources cores.cpp environment.cpp file.cpp fork_mark.cpp log.cpp profiler_range.cpp)
