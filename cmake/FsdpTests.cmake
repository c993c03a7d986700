# Declares tests. The label of a test says what it tests: `suites` (the library, from inside), `programs` (what is
# installed, and what documents say) or `repo` (the source tree). Tests that also have the label `nightly` run only in
# `scripts/test --nightly`.

if(FSDP_BUILD_TESTS)
  find_package(Python3 3.10 REQUIRED COMPONENTS Interpreter)
endif()

# Most tests mostly wait for ranks, timeouts and other threads, so ctest runs several of them at a time. A busy test
# computes all the time and counts as three tests.
set(FSDP_BUSY_TEST 3)

# fsdp_add_test(NAME LABEL COMMAND... [BUSY] [ALONE] [NIGHTLY] [TIMEOUT seconds] [ENVIRONMENT NAME=VALUE...]) adds one
# test to ctest. If the test exits with status 77, it cannot run on this machine. scripts/test lists such tests, and
# fails because of them in continuous integration.
function(fsdp_add_test name label)
  cmake_parse_arguments(arg "BUSY;ALONE;NIGHTLY" "TIMEOUT" "COMMAND;ENVIRONMENT" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES LABELS "${label}" TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77)
  if(arg_BUSY)
    set_tests_properties(${name} PROPERTIES PROCESSORS ${FSDP_BUSY_TEST})
  endif()
  if(arg_ALONE)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
  if(arg_NIGHTLY)
    set_property(TEST ${name} APPEND PROPERTY LABELS nightly)
  endif()
  if(arg_ENVIRONMENT)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${arg_ENVIRONMENT}")
  endif()
endfunction()

# fsdp_script_test(NAME SCRIPT ARGUMENTS... [options of fsdp_add_test]) adds a test of programs that is written in
# Python.
function(fsdp_script_test name script)
  if(FSDP_BUILD_TESTS AND NOT FSDP_TESTS STREQUAL suites)
    fsdp_add_test(${name} programs COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_SOURCE_DIR}/${script}" ${ARGN})
  endif()
endfunction()
