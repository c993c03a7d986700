# Defines how every target of the project is compiled: fsdp_layer for the library's folders, fsdp_program for programs
# and tests.

add_library(fsdp_settings INTERFACE)
target_include_directories(
  fsdp_settings INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:include>")
target_link_libraries(fsdp_settings INTERFACE LibTorch::LibTorch Threads::Threads)

add_library(fsdp_private_settings INTERFACE)
target_include_directories(fsdp_private_settings INTERFACE "${PROJECT_SOURCE_DIR}/src")
target_compile_options(fsdp_private_settings INTERFACE -Wall -Wextra -Wshadow $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
                                                       $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
                                                       $<$<BOOL:${FSDP_WARNINGS_AS_ERRORS}>:-Werror>)
if(FSDP_SANITIZE)
  # The vptr check opens a pipe for each new object, which fails in tests that use up all descriptors. The null check is
  # not needed, because reading a null pointer ends the process anyway. Checks that end the process are cheaper to
  # compile.
  target_compile_options(
    fsdp_private_settings INTERFACE -fsanitize=${FSDP_SANITIZE} -fno-sanitize=vptr,null -fno-sanitize-recover=all
                                    -fno-omit-frame-pointer -g1)
  # Sanitizers keep the compiler from vectorising loops that are marked for vectorisation, so this warning is off.
  target_compile_options(fsdp_private_settings INTERFACE $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
  target_link_options(fsdp_private_settings INTERFACE -fsanitize=${FSDP_SANITIZE})
endif()
if(FSDP_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # LibTorch's headers have a fence (PyObjectSlot.h), which ThreadSanitizer does not support. fsdp has no fences.
  target_compile_options(fsdp_private_settings INTERFACE -Wno-tsan)
endif()
# A shared library exports only what public headers declare. If suites use the library, it exports everything, because
# suites call internal functions.
if(BUILD_SHARED_LIBS AND (NOT FSDP_BUILD_TESTS OR FSDP_TESTS STREQUAL programs))
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
endif()
# LLVM's linker takes a tenth of the time of the system's linker. It cannot link objects of g++'s link-time
# optimization, but fsdp does not use that.
find_program(FSDP_LLD ld.lld)
if(FSDP_LLD AND PROJECT_IS_TOP_LEVEL)
  target_link_options(fsdp_private_settings INTERFACE -fuse-ld=lld)
endif()

# All targets of a build have the same precompiled header. If programs are built, it has all headers of LibTorch that
# they need, and if tests are built, it has GoogleTest.
set(FSDP_PRECOMPILED
    <ATen/core/Tensor.h> <ATen/core/dispatch/Dispatcher.h> <torch/csrc/autograd/engine.h>
    <torch/csrc/autograd/graph_task.h> <torch/csrc/distributed/c10d/Backend.hpp>
    <torch/csrc/distributed/c10d/PrefixStore.hpp> <nlohmann/json.hpp>)
if(FSDP_BUILD_APPS OR FSDP_BUILD_TESTS)
  list(APPEND FSDP_PRECOMPILED <torch/torch.h> <torch/script.h> "${PROJECT_SOURCE_DIR}/cmake/precompiled.h")
endif()
if(FSDP_BUILD_TESTS)
  find_package(GTest REQUIRED)
  list(APPEND FSDP_PRECOMPILED <gmock/gmock.h> <gtest/gtest.h>)
endif()
set(_source "${PROJECT_BINARY_DIR}/fsdp_precompiled.cpp")
if(NOT EXISTS "${_source}") # The file is written only once, because a new time stamp would rebuild everything.
  file(WRITE "${_source}" "")
endif()
add_library(fsdp_precompiled OBJECT "${_source}")
target_link_libraries(fsdp_precompiled PRIVATE fsdp_settings fsdp_private_settings)
if(FSDP_BUILD_TESTS)
  target_link_libraries(fsdp_precompiled PRIVATE GTest::gmock GTest::gtest)
endif()
target_precompile_headers(fsdp_precompiled PRIVATE ${FSDP_PRECOMPILED})

# Instantiating templates of LibTorch's headers takes seconds for each file. The files of a target are therefore
# compiled in batches, in which they share one namespace.
function(fsdp_compile_in_batches name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${FSDP_BATCHES} UNITY_BUILD_BATCH_SIZE 16)
endfunction()

# fsdp_layer(NAME SOURCES...) adds a folder of the library. src/CMakeLists.txt makes one library of all folders.
function(fsdp_layer name)
  add_library(${name} OBJECT ${ARGN})
  set_property(GLOBAL APPEND PROPERTY FSDP_LAYERS ${name})
  target_link_libraries(${name} PRIVATE fsdp_settings fsdp_private_settings)
  fsdp_compile_in_batches(${name})
  target_precompile_headers(${name} REUSE_FROM fsdp_precompiled)
  # Suites spend most of their time in these layers. With -O1 suites run in half the time, but these layers take twice
  # as long to compile.
  if(FSDP_SANITIZE AND name MATCHES "layout|memory|comm|runtime" AND CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    target_compile_options(${name} PRIVATE -O1 "SHELL:-Xclang -fno-validate-pch")
  endif()
endfunction()

# Settings that programs and their parts have in common. Programs compute in the library and in LibTorch, so -O1 is
# enough for them; it compiles in two thirds of the time of -O2. UNOPTIMIZED, for examples, tests and flags, takes one
# third of that time.
function(fsdp_compile_as_program name is_unoptimized)
  fsdp_compile_in_batches(${name})
  target_precompile_headers(${name} REUSE_FROM fsdp_precompiled)
  if(is_unoptimized AND CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    # The precompiled header contains only declarations, so the header of optimized code can be used. clang refuses it
    # without this flag.
    target_compile_options(${name} PRIVATE -O0 "SHELL:-Xclang -fno-validate-pch")
    if(FSDP_SANITIZE MATCHES undefined)
      target_compile_options(${name} PRIVATE -fno-sanitize=alignment) # Their own code does not access rows.
    endif()
  else()
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()

# fsdp_program(NAME SOURCES... DEPENDS... [UNOPTIMIZED]) adds an executable.
function(fsdp_program name)
  cmake_parse_arguments(arg "UNOPTIMIZED" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} fsdp_settings fsdp_private_settings)
  # The precompiled header is compiled with -fPIC. By default CMake compiles executables with -fPIE, and they could not
  # use it.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIC)
  fsdp_compile_as_program(${name} "${arg_UNOPTIMIZED}")
endfunction()

# fsdp_program_part(NAME SOURCES... DEPENDS... [UNOPTIMIZED]) adds a library for code that several programs share, or
# that tests call directly.
function(fsdp_program_part name)
  cmake_parse_arguments(arg "UNOPTIMIZED" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC fsdp_inside PRIVATE ${arg_DEPENDS} fsdp_private_settings)
  fsdp_compile_as_program(${name} "${arg_UNOPTIMIZED}")
endfunction()
