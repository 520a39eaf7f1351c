# README.md shows each example to the letter, and what quickstart.c prints is what it says.
file(READ ${README} readme)

function(expect_block language text what)
  string(FIND "${readme}" "```${language}\n${text}```" position)
  if(position EQUAL -1)
    message(SEND_ERROR "README.md has no ```${language} block that equals ${what}:\n${text}")
  endif()
endfunction()

foreach(example quickstart.c launch.c)
  file(READ ${EXAMPLES}/${example} text)
  expect_block(c "${text}" tests/examples/${example})
endforeach()

execute_process(COMMAND ${QUICKSTART} OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${QUICKSTART} ended with ${result}: ${errors}")
endif()
expect_block(text "${output}" "the output of quickstart.c")
