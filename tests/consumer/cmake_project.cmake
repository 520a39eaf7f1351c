# Script mode: configures the project in SOURCE with ARGUMENTS (a|b|c), builds it, and runs its programs; both libraries
# print the same. With CONFIGURE_ONLY, the first step alone.
include(${CMAKE_CURRENT_LIST_DIR}/expect_quickstart.cmake)
string(REPLACE "|" ";" ARGUMENTS "${ARGUMENTS}")
unset(ENV{CMAKE_BUILD_TYPE})
file(REMOVE_RECURSE ${OUT})
execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${OUT} ${ARGUMENTS} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
if(CONFIGURE_ONLY)
  return()
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${OUT} OUTPUT_VARIABLE output RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${output}")
endif()
expect_quickstart(${OUT}/with_normquant)
expect_quickstart(${OUT}/with_normquant_static)

# A project that is installed does not install normquant with it, unless it asks for that.
execute_process(COMMAND ${CMAKE_COMMAND} --install ${OUT} --prefix ${OUT}/prefix OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE installed ${OUT}/prefix/*)
if(installed)
  message(FATAL_ERROR "installed: ${installed}")
endif()
