# Compiler settings as one INTERFACE target, linked PRIVATE by everything built here.

add_library(normquant_settings INTERFACE)
target_compile_features(normquant_settings INTERFACE cxx_std_20)
# GCC 12's -Wrestrict misfires on assignments of literals to std::string (GCC bug 105651).
# -ffp-contract=off: the CPU reference's bits are defined operation by operation.
target_compile_options(normquant_settings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -ffp-contract=off
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
if(NORMQUANT_WARNINGS_AS_ERRORS)
  target_compile_options(normquant_settings INTERFACE -Werror)
endif()
if(NORMQUANT_SANITIZE)
  target_compile_options(normquant_settings INTERFACE -fsanitize=${NORMQUANT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  target_link_options(normquant_settings INTERFACE -fsanitize=${NORMQUANT_SANITIZE})
  if(NORMQUANT_SANITIZE MATCHES "address.*undefined")
    # The address sanitizer sees null pointers and overrun objects as well; UBSan's checks of them take a quarter of the build.
    target_compile_options(normquant_settings INTERFACE -fno-sanitize=null,object-size,vptr)
  endif()
endif()
if(NORMQUANT_FUZZ AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "NORMQUANT_FUZZ needs Clang and its runtime (Debian: clang libclang-rt-dev), not ${CMAKE_CXX_COMPILER_ID}: -DCMAKE_CXX_COMPILER=clang++")
endif()
# What is released does not tell the folder that it was built in, and so is the same from all. Developers' debuggers want the true paths.
# Of two that fit, the last one counts: the build folder often lies in the other.
set(_released "$<$<CONFIG:Release,MinSizeRel>:-ffile-prefix-map=")
target_compile_options(normquant_settings INTERFACE
  ${_released}${PROJECT_SOURCE_DIR}=normquant> ${_released}${PROJECT_BINARY_DIR}=build>)
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
