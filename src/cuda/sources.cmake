set(sources driver.cpp library_file.cpp library_identity.cpp loader_path.cpp nvrtc.cpp nvrtc_file.cpp)
