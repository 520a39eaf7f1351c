set(sources api.cpp)
