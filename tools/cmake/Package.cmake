# Debian packages, one a component: libnormquant0.1, libnormquant-dev, python3-normquant, normquant. For CMAKE_INSTALL_PREFIX=/usr (preset:
# package), as the folders of libraries and of zsh's completions go by it; cpack --config BUILD/CPackConfig.cmake, with SOURCE_DATE_EPOCH
# for equal bytes.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME normquant)
set(CPACK_PACKAGE_CONTACT "The normquant developers" CACHE STRING "Who publishes the packages: Name <address>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_COMPONENTS_ALL ${NORMQUANT_COMPONENTS})
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
# The tool has the library in it, and needs no other package.
set(CPACK_COMPONENT_DEVELOPMENT_DEPENDS runtime)
set(CPACK_COMPONENT_PYTHON_DEPENDS runtime)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS python3)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/tools/cmake/prerm)
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# package(COMPONENT SECTION DESCRIPTION)
function(package component section description)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${NORMQUANT_PACKAGE_${component}} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${description}" PARENT_SCOPE)
endfunction()
package(runtime libs "The shared library. NVRTC and the CUDA driver are loaded when they are needed:
kernels are compiled with the one and run with the other. With neither, it
computes on the CPU.")
package(development libdevel "Headers for C and C++, the static library, and what CMake and pkg-config need
to find them.")
package(python python "The library from Python, on arrays of PyTorch, CuPy, numpy and whatever else has
DLPack; with FlashInfer's functions of RMSNorm and FP4 quantization.")
package(tools utils "The normquant command: quantizes files, fills and looks after the kernel
cache, tells what is wrong with an installation.")
include(CPack)
