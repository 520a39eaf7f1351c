set(sources context.cpp cubin.cpp kernel.cpp launch.cpp precompile.cpp prepare.cpp tensors.cpp)
