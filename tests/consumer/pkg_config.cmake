# Script mode: a C program built with what pkg-config says of the tree in PREFIX, against the shared and against the static library.
include(${CMAKE_CURRENT_LIST_DIR}/expect_quickstart.cmake)
find_program(PKG_CONFIG pkg-config)
if(NOT PKG_CONFIG)
  message("skipped: there is no pkg-config")
  return()
endif()
set(ENV{PKG_CONFIG_LIBDIR} ${PREFIX}/${LIBDIR}/pkgconfig)  # nothing else

# flags(OUT ARGUMENT...): what pkg-config prints, as a list
function(flags out)
  execute_process(COMMAND ${PKG_CONFIG} ${ARGN} normquant
    OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(output UNIX_COMMAND "${output}")
  set(${out} "${output}" PARENT_SCOPE)
endfunction()

flags(version --modversion)
if(NOT version STREQUAL VERSION)
  message(FATAL_ERROR "pkg-config says version ${version}, not ${VERSION}")
endif()
file(MAKE_DIRECTORY ${OUT})

flags(shared --cflags --libs)
execute_process(COMMAND ${CC} -std=c99 ${PROGRAM} -o ${OUT}/shared ${shared} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${READELF} -d ${OUT}/shared OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
if(NOT dynamic MATCHES "NEEDED[^\n]*libnormquant\\.so\\.${ABI}\\]" OR dynamic MATCHES "libstdc")
  message(FATAL_ERROR "a C program needs the library by its SONAME and, of its own, no C++:\n${dynamic}")
endif()
expect_quickstart(${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${PREFIX}/${LIBDIR} ${OUT}/shared)

# Linkers prefer the shared library where both are, unless the archive is named.
flags(static --static --cflags --libs)
list(TRANSFORM static REPLACE "^-lnormquant$" "-l:libnormquant.a")
execute_process(COMMAND ${CC} -std=c99 ${PROGRAM} -o ${OUT}/static ${static} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${READELF} -d ${OUT}/static OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
if(dynamic MATCHES "libnormquant")
  message(FATAL_ERROR "linked statically, but the program needs the shared library:\n${dynamic}")
endif()
expect_quickstart(${OUT}/static)
