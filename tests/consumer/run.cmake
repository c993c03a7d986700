# Installs the build in BUILD_DIR into PREFIX, then builds and runs the project in SOURCE against it.
foreach(_step IN ITEMS install configure build run)
  set(_consumer "${PREFIX}-consumer")
  if(_step STREQUAL "install")
    file(REMOVE_RECURSE "${PREFIX}" "${_consumer}")
    set(_command ${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${PREFIX}")
  elseif(_step STREQUAL "configure")
    set(_command ${CMAKE_COMMAND} -S "${SOURCE}" -B "${_consumer}" -G "${GENERATOR}" -D "CMAKE_CXX_COMPILER=${CXX}"
                 -D "CMAKE_PREFIX_PATH=${PREFIX}")
  elseif(_step STREQUAL "build")
    set(_command ${CMAKE_COMMAND} --build "${_consumer}")
  else()
    set(_command "${_consumer}/consumer")
  endif()
  execute_process(COMMAND ${_command} RESULT_VARIABLE _result OUTPUT_VARIABLE _output ERROR_VARIABLE _output)
  if(NOT _result EQUAL 0)
    message(FATAL_ERROR "consumer: ${_step} failed (${_result}):\n${_output}")
  endif()
endforeach()
message(STATUS "${_output}")

# With an older standard the first and only thing to read is what to do about it.
execute_process(COMMAND "${CXX}" -std=c++17 -fsyntax-only -I "${PREFIX}/include" "${SOURCE}/older_standard.cpp"
                RESULT_VARIABLE _result ERROR_VARIABLE _output)
string(REGEX MATCHALL "error: [^\n]*" _errors "${_output}")
if(_result EQUAL 0 OR NOT _errors MATCHES "^error: #error \"fsdp needs C\\+\\+20: [^;]*$")
  message(FATAL_ERROR "consumer: expected 'fsdp needs C++20' and no other error with -std=c++17, found:\n${_output}")
endif()
