# Script mode: installs BUILD, component by component, then whole into PREFIX. Every file is expected, and none has the path of the
# build or of the sources. The whole tree is installed elsewhere and moved, so that what uses it shows that it can be.
set(soname libnormquant.so.${ABI})
string(TOLOWER "${CONFIG}" config)
set(runtime ${LIBDIR}/${soname} ${LIBDIR}/libnormquant.so.${VERSION} share/doc/libnormquant${ABI}/copyright)
set(cmake_dir ${LIBDIR}/cmake/normquant)
set(development
  include/normquant/normquant.h include/normquant/normquant.hpp
  ${LIBDIR}/libnormquant.a ${LIBDIR}/libnormquant.so ${LIBDIR}/pkgconfig/normquant.pc
  ${cmake_dir}/normquantConfig.cmake ${cmake_dir}/normquantConfig-${config}.cmake ${cmake_dir}/normquantConfigVersion.cmake
  share/doc/libnormquant-dev/copyright)
set(python ${PYTHON_DIR}/normquant.py share/doc/python3-normquant/copyright)
if(NOT PYTHON_DIR STREQUAL lib/python3/dist-packages)
  list(APPEND python ${PYTHON_DIR}/${soname})
endif()
set(tools
  bin/normquant share/doc/normquant/copyright share/man/man1/normquant.1 share/bash-completion/completions/normquant
  share/${ZSH_DIR}/_normquant share/fish/vendor_completions.d/normquant.fish)

# expect_files(PREFIX FILE...)
function(expect_files prefix)
  file(GLOB_RECURSE found RELATIVE ${prefix} ${prefix}/*)
  list(SORT found)
  set(expected ${ARGN})
  list(SORT expected)
  if(NOT found STREQUAL expected)
    message(FATAL_ERROR "${prefix} has: ${found}\nexpected: ${expected}")
  endif()
endfunction()

function(install_into prefix)
  execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix} ${ARGN} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(staging ${PREFIX}.staging)
file(REMOVE_RECURSE ${PREFIX} ${staging})
set(all "")
foreach(component runtime development python)
  install_into(${staging}/${component} --component ${component})
  expect_files(${staging}/${component} ${${component}})
  list(APPEND all ${${component}})
endforeach()
if(TOOLS)
  install_into(${staging}/tools --component tools)
  expect_files(${staging}/tools ${tools})
  list(APPEND all ${tools})
endif()
install_into(${staging}/all)
expect_files(${staging}/all ${all})

string(REGEX REPLACE "([][+.*?^$()|\\])" "\\\\\\1" here "${BUILD};${SOURCE}")
string(REPLACE ";" "|" here "${here}")
foreach(file IN LISTS all)
  if(CONFIG MATCHES "^(Release|MinSizeRel)$" OR NOT file MATCHES "\\.so|\\.a$|^bin/")  # for debuggers, others have the paths
    file(STRINGS ${staging}/all/${file} paths REGEX "${here}")
    if(paths)
      message(FATAL_ERROR "${file} has a path of the build in it: ${paths}")
    endif()
  endif()
endforeach()
execute_process(COMMAND ${READELF} -d ${staging}/all/${LIBDIR}/${soname} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
if(NOT dynamic MATCHES "\\(SONAME\\)[^\n]*\\[${soname}\\]" OR dynamic MATCHES "R(UN)?PATH")
  message(FATAL_ERROR "the library's SONAME is not ${soname}, or it has a RUNPATH:\n${dynamic}")
endif()

file(RENAME ${staging}/all ${PREFIX})
file(REMOVE_RECURSE ${staging})
if(TOOLS)
  execute_process(COMMAND ${PREFIX}/bin/normquant --version OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
  if(NOT version STREQUAL "normquant ${VERSION}\n")
    message(FATAL_ERROR "the installed tool says it is: ${version}")
  endif()
endif()
