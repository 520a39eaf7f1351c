# Script mode: what of an installation depends on its folders, configured, not built. SOURCE is configured with ARGUMENTS (a|b|c).
include(${CMAKE_CURRENT_LIST_DIR}/expect_quickstart.cmake)
string(REPLACE "|" ";" ARGUMENTS "${ARGUMENTS}")
file(REMOVE_RECURSE ${OUT})
function(configure)
  execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${OUT} ${ARGUMENTS}
    -DNORMQUANT_BUILD_TESTS=OFF -DNORMQUANT_BUILD_TOOLS=OFF -DCMAKE_INSTALL_PREFIX=/opt/normquant ${ARGN} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Outside of Debian's folders, normquant.py knows its library by a link, wherever the tree is moved.
configure(-DCMAKE_INSTALL_LIBDIR=lib/some-linux-gnu)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${OUT} --component python --prefix ${OUT}/prefix OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
set(libdir ${OUT}/moved/lib/some-linux-gnu)
file(RENAME ${OUT}/prefix ${OUT}/moved)
file(COPY ${LIBRARY} DESTINATION ${libdir} FOLLOW_SYMLINK_CHAIN)
expect_quickstart(${CMAKE_COMMAND} -E env --unset=NORMQUANT_LIBRARY --unset=LD_LIBRARY_PATH PYTHONDONTWRITEBYTECODE=1
  PYTHONPATH=${OUT}/moved/share/normquant/python ${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/quickstart.py ${libdir})

find_program(PKG_CONFIG pkg-config)
if(NOT PKG_CONFIG)
  message("skipped: there is no pkg-config")
  return()
endif()
# expect_variables(PREFIX LIBDIR INCLUDEDIR), of a normquant.pc that lies where it is installed, below FOLDER.
function(expect_variables folder)
  file(COPY ${OUT}/normquant.pc DESTINATION ${folder}/pkgconfig)
  set(ENV{PKG_CONFIG_LIBDIR} ${folder}/pkgconfig)
  foreach(name expected IN ZIP_LISTS variables ARGN)
    execute_process(COMMAND ${PKG_CONFIG} --variable=${name} normquant
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    get_filename_component(found "${found}" ABSOLUTE)
    if(NOT found STREQUAL expected)
      message(SEND_ERROR "${name} of normquant.pc is ${found}; expected: ${expected}")
    endif()
  endforeach()
endfunction()
set(variables prefix libdir includedir)
expect_variables(${libdir} ${OUT}/moved ${libdir} ${OUT}/moved/include)
configure(-DCMAKE_INSTALL_LIBDIR=/store/library/lib -DCMAKE_INSTALL_INCLUDEDIR=/store/headers/include)
expect_variables(${OUT}/absolute /opt/normquant /store/library/lib /store/headers/include)
configure(-DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_INCLUDEDIR=/store/headers/include)
expect_variables(${OUT}/moved/lib ${OUT}/moved ${OUT}/moved/lib /store/headers/include)
