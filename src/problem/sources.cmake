set(sources arch.cpp option_values.cpp problem.cpp)
