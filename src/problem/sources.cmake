set(sources arch.cpp problem.cpp)
