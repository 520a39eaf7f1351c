set(sources source.cpp)
