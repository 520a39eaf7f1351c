# What is installed, in four components: runtime (the shared library), development (what a program is built with), python, tools.
# Nothing in it knows the prefix, unless a folder is given as an absolute path: the tree can be moved.

# <name>/copyright is where Debian looks for the licence of a package.
set(NORMQUANT_PACKAGE_runtime libnormquant${NORMQUANT_ABI_VERSION})
set(NORMQUANT_PACKAGE_development libnormquant-dev)
set(NORMQUANT_PACKAGE_python python3-normquant)
set(NORMQUANT_PACKAGE_tools normquant)
set(NORMQUANT_COMPONENTS runtime development python)
if(NORMQUANT_BUILD_TOOLS)
  list(APPEND NORMQUANT_COMPONENTS tools)
endif()
foreach(component IN LISTS NORMQUANT_COMPONENTS)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE RENAME copyright COMPONENT ${component}
    DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${NORMQUANT_PACKAGE_${component}})
endforeach()

install(TARGETS normquant EXPORT normquant
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development)
install(TARGETS normquant_static EXPORT normquant ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(FILES ${PROJECT_SOURCE_DIR}/include/normquant/normquant.h ${PROJECT_SOURCE_DIR}/include/normquant/normquant.hpp
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/normquant COMPONENT development)

# find_package(normquant): normquant::normquant and normquant::normquant_static. They need no other package, so that the file which
# CMake writes of them is the configuration. A later version stands in for another where the SONAME is the same.
include(CMakePackageConfigHelpers)
set(same_abi SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(same_abi SameMinorVersion)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/normquantConfigVersion.cmake COMPATIBILITY ${same_abi})
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/normquant)
install(FILES ${PROJECT_BINARY_DIR}/normquantConfigVersion.cmake DESTINATION ${package_dir} COMPONENT development)
install(EXPORT normquant NAMESPACE normquant:: FILE normquantConfig.cmake DESTINATION ${package_dir} COMPONENT development)

# A folder that was given as an absolute path stays where it is.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  string(REGEX REPLACE "/$" "" to_prefix ${to_prefix})
  set(pc_prefix "\${pcfiledir}/${to_prefix}")
endif()
foreach(dir LIBDIR INCLUDEDIR)
  set(pc_${dir} ${CMAKE_INSTALL_${dir}})
  if(NOT IS_ABSOLUTE ${pc_${dir}})
    string(PREPEND pc_${dir} "\${prefix}/")
  endif()
endforeach()
get_target_property(private normquant_static INTERFACE_LINK_LIBRARIES)
list(TRANSFORM private PREPEND -l)
list(JOIN private " " private)
configure_file(${PROJECT_SOURCE_DIR}/tools/cmake/normquant.pc.in ${PROJECT_BINARY_DIR}/normquant.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/normquant.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

# normquant.py looks for the library beside itself, then where the loader does. Debian's python3 looks for it in one folder for all its
# versions, and Debian's loader knows the library; elsewhere it has a link to the library beside it.
set(NORMQUANT_PYTHON_DIR "" CACHE STRING
  "Where normquant.py is installed, absolute or under the prefix (default: share/normquant/python, or Debian's)")
set(link_beside_module OFF)
if(NOT NORMQUANT_PYTHON_DIR AND CMAKE_INSTALL_PREFIX STREQUAL /usr AND EXISTS /etc/debian_version)
  set(NORMQUANT_PYTHON_DIR lib/python3/dist-packages)
elseif(NOT IS_ABSOLUTE "${NORMQUANT_PYTHON_DIR}" AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(link_beside_module ON)
endif()
if(NOT NORMQUANT_PYTHON_DIR)
  set(NORMQUANT_PYTHON_DIR ${CMAKE_INSTALL_DATAROOTDIR}/normquant/python)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/tools/python/normquant.py DESTINATION ${NORMQUANT_PYTHON_DIR} COMPONENT python)
if(link_beside_module)
  set(soname libnormquant.so.${NORMQUANT_ABI_VERSION})
  file(RELATIVE_PATH to_library ${CMAKE_INSTALL_PREFIX}/${NORMQUANT_PYTHON_DIR} ${CMAKE_INSTALL_FULL_LIBDIR}/${soname})
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/python)
  file(CREATE_LINK ${to_library} ${PROJECT_BINARY_DIR}/python/${soname} SYMBOLIC)
  install(FILES ${PROJECT_BINARY_DIR}/python/${soname} DESTINATION ${NORMQUANT_PYTHON_DIR} COMPONENT python)
endif()

if(NORMQUANT_BUILD_TOOLS)
  install(TARGETS normquant_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
endif()
if(NORMQUANT_DOCUMENTATION_DIR)
  # Where the shells look under /usr and under /usr/local; Debian's zsh has a folder of its own for packages.
  set(NORMQUANT_ZSH_DIR zsh/site-functions)
  if(CMAKE_INSTALL_PREFIX STREQUAL /usr AND EXISTS /etc/debian_version)
    set(NORMQUANT_ZSH_DIR zsh/vendor-completions)
  endif()
  function(install_documentation form dir name)
    install(FILES ${NORMQUANT_DOCUMENTATION_DIR}/${form} DESTINATION ${dir} RENAME ${name} COMPONENT tools)
  endfunction()
  install_documentation(man ${CMAKE_INSTALL_MANDIR}/man1 normquant.1)
  install_documentation(bash ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions normquant)
  install_documentation(zsh ${CMAKE_INSTALL_DATAROOTDIR}/${NORMQUANT_ZSH_DIR} _normquant)
  install_documentation(fish ${CMAKE_INSTALL_DATAROOTDIR}/fish/vendor_completions.d normquant.fish)
endif()
