# The examples without a GPU: on a driver that computes what the reference does they succeed, on one whose kernels do nothing they find
# that the bytes are wrong; both times they give everything back. With no driver at all they are skipped.
set(ENV{NORMQUANT_NVRTC} ${NVRTC})
set(ENV{NORMQUANT_CACHE_DIR} ${CACHE})

function(expect_run code output_regex errors_regex)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE result)
  if(NOT result EQUAL code OR NOT output MATCHES "${output_regex}" OR NOT errors MATCHES "${errors_regex}" OR errors MATCHES "leaked")
    message(SEND_ERROR "${ARGN} ended with ${result}, not ${code}, and said:\n${output}${errors}")
  endif()
endfunction()

file(REMOVE_RECURSE ${CACHE})
set(ENV{NORMQUANT_LIBCUDA} ${GPU})
set(right "the bytes of the reference")
expect_run(0 "step 0: 64 of 64 rows, ${right}.*step 4: 0 of 64 rows, ${right}.*step 6: 8 of 64 rows, ${right}" "^$" ${DECODE_LOOP})
expect_run(0 "1024 rows of 4096 twice: ${right}" "^$" ${PREFILL})
expect_run(0 "^64 of 64 requests have ${right}; [1-9][0-9]* compiles in the warm-up, 0 while serving" "^$" ${SERVER})

file(REMOVE_RECURSE ${CACHE})
set(ENV{NORMQUANT_LIBCUDA} ${IDLE_GPU})
set(wrong "is [0-9a-f]+ on the GPU and [0-9a-f]+ in the reference")
expect_run(1 "step 0: 64 of 64 rows, WRONG" "residual: .*${wrong}.*fp4: .*${wrong}.*scales: .*${wrong}" ${DECODE_LOOP})
expect_run(1 "1024 rows of 4096 twice: WRONG" "fp4: .*${wrong}.*residual: .*${wrong}" ${PREFILL})
expect_run(1 "^0 of 64 requests .*; [1-9][0-9]* compiles in the warm-up, 0 while serving" "fp4: .*${wrong}" ${SERVER})

set(ENV{NORMQUANT_LIBCUDA} /nonexistent/libcuda.so.1)
foreach(example ${DECODE_LOOP} ${PREFILL} ${SERVER})
  expect_run(77 "^skipped: no GPU here \\(.*/nonexistent/libcuda.so.1" "^$" ${example})
endforeach()

# Where there is no driver, kernels are compiled into the cache all the same, once.
file(REMOVE_RECURSE ${CACHE})
expect_run(0 "^([0-9]+ of [0-9]+, sm_[0-9]+: compiled\n)+$" "^$" ${PREFILL} sm_90 sm_86)
expect_run(0 "^([0-9]+ of [0-9]+, sm_[0-9]+: cached\n)+$" "^$" ${PREFILL} sm_90 sm_86)
expect_run(1 "" "sm_1" ${PREFILL} sm_1)
file(REMOVE_RECURSE ${CACHE})
