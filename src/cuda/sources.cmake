set(sources driver.cpp library_file.cpp library_identity.cpp nvrtc.cpp)
