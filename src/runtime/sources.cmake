set(sources context.cpp cubin.cpp dump.cpp kernel.cpp launch.cpp precompile.cpp prepare.cpp record.cpp tensors.cpp)
