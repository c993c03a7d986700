# How every target of the project is compiled: fsdp_library for layers, fsdp_program for programs and tests.

add_library(fsdp_settings INTERFACE)
target_include_directories(
  fsdp_settings INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:include>")
target_link_libraries(fsdp_settings INTERFACE LibTorch::LibTorch Threads::Threads)

add_library(fsdp_private_settings INTERFACE)
target_include_directories(fsdp_private_settings INTERFACE "${PROJECT_SOURCE_DIR}/src")
target_compile_options(fsdp_private_settings INTERFACE -Wall -Wextra -Wshadow $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
                                                       $<$<BOOL:${FSDP_WARNINGS_AS_ERRORS}>:-Werror>)
if(FSDP_SANITIZE)
  target_compile_options(fsdp_private_settings INTERFACE -fsanitize=${FSDP_SANITIZE} -fno-omit-frame-pointer -g1)
  target_link_options(fsdp_private_settings INTERFACE -fsanitize=${FSDP_SANITIZE})
endif()
if(FSDP_SANITIZE MATCHES thread)
  # LibTorch's headers have a fence (PyObjectSlot.h), which ThreadSanitizer does not model; fsdp has none.
  target_compile_options(fsdp_private_settings INTERFACE -Wno-tsan)
endif()

# Two precompiled headers for the whole build, and a third one for tests (tests/CMakeLists.txt). torch/torch.h makes every
# file that uses it seconds slower to compile than the headers of tensors, dispatch, autograd and c10d do, and only
# programs and tests train modules.
function(fsdp_precompile name)
  set(source "${PROJECT_BINARY_DIR}/${name}.cpp")
  if(NOT EXISTS "${source}") # written once: a new time stamp rebuilds everything
    file(WRITE "${source}" "")
  endif()
  add_library(${name} OBJECT "${source}")
  target_link_libraries(${name} PRIVATE fsdp_settings fsdp_private_settings)
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()
fsdp_precompile(
  fsdp_precompiled_core <ATen/core/Tensor.h> <ATen/core/dispatch/Dispatcher.h> <torch/csrc/autograd/engine.h>
  <torch/csrc/autograd/graph_task.h> <torch/csrc/distributed/c10d/Backend.hpp>
  <torch/csrc/distributed/c10d/PrefixStore.hpp>)
fsdp_precompile(fsdp_precompiled_torch <torch/torch.h> <torch/script.h>)

# A file takes g++ seconds before its own code counts, and twice as many where it uses torch/torch.h: what the headers
# leave to be instantiated. So the files of a target are compiled in batches, and share one namespace.
function(fsdp_compile_in_batches name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${FSDP_BATCHES} UNITY_BUILD_BATCH_SIZE 16)
endfunction()

# fsdp_library(NAME SOURCES... DEPENDS...): one layer.
function(fsdp_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  set_property(GLOBAL APPEND PROPERTY FSDP_LAYERS ${name}) # what cmake/Install.cmake installs
  target_link_libraries(${name} PUBLIC fsdp_settings ${arg_DEPENDS} PRIVATE $<BUILD_INTERFACE:fsdp_private_settings>)
  fsdp_compile_in_batches(${name})
  target_precompile_headers(${name} REUSE_FROM fsdp_precompiled_core)
endfunction()

# What programs and tests compute, they compute in the library and in LibTorch. With -O1 a third less to compile than with
# -O2; for clang, of whose time two thirds go into code and not into templates, with -O0 two thirds less than that.
set(FSDP_TEST_OPTIMIZATION $<$<CONFIG:RelWithDebInfo>:-O1> $<$<CONFIG:Release>:-O0>)

# fsdp_program(NAME SOURCES... DEPENDS... [TESTS]): an executable; TESTS: of tests, so it is compiled in half the time.
function(fsdp_program name)
  cmake_parse_arguments(arg "TESTS" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} fsdp_settings fsdp_private_settings)
  # The precompiled header is compiled with -fPIC; CMake would compile executables with -fPIE and not use it.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIC)
  fsdp_compile_in_batches(${name})
  if(arg_TESTS)
    target_compile_options(${name} PRIVATE ${FSDP_TEST_OPTIMIZATION})
    target_precompile_headers(${name} REUSE_FROM fsdp_precompiled_tests)
  else()
    target_compile_options(${name} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
    target_precompile_headers(${name} REUSE_FROM fsdp_precompiled_torch)
  endif()
endfunction()
