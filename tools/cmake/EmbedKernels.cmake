# Turns kernels/normquant into a C++ table of (include name, text): at run time nothing is read from disk.

set(NORMQUANT_KERNEL_HEADERS
  arrival.cuh block.cuh fp4.cuh geometry.h input.cuh intrinsics.cuh memory.cuh output.cuh params.h reduce.cuh rmsnorm_fp4.cuh
  row.cuh scale.cuh scale_layout.h split.cuh staged.cuh types.cuh)
list(TRANSFORM NORMQUANT_KERNEL_HEADERS PREPEND ${PROJECT_SOURCE_DIR}/kernels/normquant/)

set(NORMQUANT_EMBEDDED_KERNELS ${PROJECT_BINARY_DIR}/generated/embedded_kernels.cpp)
add_custom_command(
  OUTPUT ${NORMQUANT_EMBEDDED_KERNELS}
  COMMAND ${CMAKE_COMMAND} -DOUT=${NORMQUANT_EMBEDDED_KERNELS} "-DHEADERS=${NORMQUANT_KERNEL_HEADERS}"
          -P ${PROJECT_SOURCE_DIR}/tools/cmake/embed.cmake
  DEPENDS ${NORMQUANT_KERNEL_HEADERS} ${PROJECT_SOURCE_DIR}/tools/cmake/embed.cmake
  COMMENT "Embedding kernel sources" VERBATIM)
