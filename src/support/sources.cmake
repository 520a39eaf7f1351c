set(sources environment.cpp file.cpp log.cpp)
