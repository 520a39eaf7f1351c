# Script mode: normquant.py of an installed tree, with the library that the loader is told of.
include(${CMAKE_CURRENT_LIST_DIR}/expect_quickstart.cmake)
expect_quickstart(${CMAKE_COMMAND} -E env --unset=NORMQUANT_LIBRARY PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=${MODULE_DIR}
  LD_LIBRARY_PATH=${LIBRARY_DIR} ${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/quickstart.py ${LIBRARY_DIR})
