set(sources numerics.cpp reference.cpp)
