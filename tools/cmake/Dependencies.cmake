# Finds what the build needs, as installed packages. What is missing is named together with the Debian package that has it.

set(_missing "")

function(_normquant_need name header package)
  find_path(NORMQUANT_${name}_INCLUDE ${header} ${ARGN})
  if(NOT NORMQUANT_${name}_INCLUDE)
    set(_missing "${_missing}\n  ${header}: ${package}" PARENT_SCOPE)
    return()
  endif()
  add_library(normquant_${name} INTERFACE)
  target_include_directories(normquant_${name} SYSTEM INTERFACE ${NORMQUANT_${name}_INCLUDE})
endfunction()

# Headers only: no library of the toolkit is linked.
_normquant_need(cuda cuda.h "the CUDA Toolkit >= 12.8, or -DCUDAToolkit_ROOT=DIR, or the PyPI wheels that tools/quickstart.sh fetches"
  HINTS ${CUDAToolkit_ROOT} ENV CUDAToolkit_ROOT ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda ${PROJECT_SOURCE_DIR}/build/cuda/nvidia/cu13 PATH_SUFFIXES include)
_normquant_need(fmt fmt/core.h libfmt-dev)
_normquant_need(spdlog spdlog/spdlog.h libspdlog-dev)
_normquant_need(xxhash xxhash.h libxxhash-dev)
_normquant_need(json nlohmann/json.hpp nlohmann-json3-dev)
if(NORMQUANT_BUILD_TOOLS)
  _normquant_need(cli11 CLI/CLI.hpp libcli11-dev)
endif()
if(NORMQUANT_BUILD_TESTS)
  # Catch2 2 or 3: tests/support/catch.h smooths over the difference. Version 3 has a library with main().
  find_package(Catch2 QUIET)
  if(NOT Catch2_FOUND)
    string(APPEND _missing "\n  Catch2: catch2")
  endif()
endif()

if(_missing)
  message(FATAL_ERROR "normquant needs (header: where it comes from):${_missing}\n"
    "On Debian and Ubuntu: apt-get install libfmt-dev libspdlog-dev libxxhash-dev nlohmann-json3-dev libcli11-dev catch2")
endif()

# NVRTC is loaded at run time, but its header sits beside cuda.h and is needed to compile.
if(NOT EXISTS ${NORMQUANT_cuda_INCLUDE}/nvrtc.h)
  find_path(NORMQUANT_nvrtc_INCLUDE nvrtc.h HINTS ${CUDAToolkit_ROOT} ENV CUDAToolkit_ROOT PATH_SUFFIXES include)
  if(NOT NORMQUANT_nvrtc_INCLUDE)
    message(FATAL_ERROR "nvrtc.h is neither beside ${NORMQUANT_cuda_INCLUDE}/cuda.h nor under CUDAToolkit_ROOT")
  endif()
  target_include_directories(normquant_cuda SYSTEM INTERFACE ${NORMQUANT_nvrtc_INCLUDE})
endif()
file(STRINGS ${NORMQUANT_cuda_INCLUDE}/cuda.h _cuda_version REGEX "#define CUDA_VERSION [0-9]+")
string(REGEX REPLACE ".*CUDA_VERSION ([0-9]+).*" "\\1" _cuda_version "${_cuda_version}")
if(_cuda_version LESS 12080)
  message(FATAL_ERROR "${NORMQUANT_cuda_INCLUDE}/cuda.h is of CUDA ${_cuda_version}; 12080 (12.8) or newer is needed")
endif()

# Optional: ranges for profilers.
find_path(NORMQUANT_nvtx_INCLUDE nvtx3/nvToolsExt.h HINTS ${NORMQUANT_cuda_INCLUDE})
if(NOT NORMQUANT_nvtx_INCLUDE)
  message(STATUS "Ranges for profilers are not built in, for want of nvtx3/nvToolsExt.h (CUDA Toolkit, or the PyPI wheel nvidia-nvtx)")
endif()

# Debian's packages hold no static fmt or spdlog: both are used as headers, and spdlog through the one fmt.
target_compile_definitions(normquant_fmt INTERFACE FMT_HEADER_ONLY)
target_compile_definitions(normquant_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
target_link_libraries(normquant_spdlog INTERFACE normquant_fmt)
target_compile_definitions(normquant_xxhash INTERFACE XXH_INLINE_ALL)

find_package(Threads REQUIRED)
