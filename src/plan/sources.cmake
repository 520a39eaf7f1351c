set(sources plan.cpp)
