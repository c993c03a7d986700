# How tests are declared. A test's label says what it is about: `suites` (the library, from inside), `programs` (what is
# installed, and what documents say), `repo` (the tree itself); `nightly` is what only `scripts/test --nightly` runs.

if(FSDP_BUILD_TESTS)
  find_package(Python3 3.10 REQUIRED COMPONENTS Interpreter)
endif()

# Most tests wait most of the time, for ranks, timeouts and other threads, so ctest runs several at a time. A busy one
# computes all the time and counts as three.
set(FSDP_BUSY_TEST 3)

# fsdp_add_test(NAME LABEL COMMAND... [BUSY] [ALONE] [NIGHTLY] [TIMEOUT seconds] [ENVIRONMENT NAME=VALUE...]): one test of
# ctest's. Exit status 77 means that it cannot run here; scripts/test lists it, and fails in continuous integration.
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

# fsdp_script_test(NAME SCRIPT ARGUMENTS... [options of fsdp_add_test]): a test of programs, written in Python.
function(fsdp_script_test name script)
  if(FSDP_BUILD_TESTS AND NOT FSDP_TESTS STREQUAL suites)
    fsdp_add_test(${name} programs COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_SOURCE_DIR}/${script}" ${ARGN})
  endif()
endfunction()
