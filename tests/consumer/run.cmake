# Uses fsdp as other projects do. It installs the build in BUILD_DIR into PREFIX, and builds and runs programs with it.
# It installs the Debian packages into an empty root, and builds a program there with pkg-config. Then it builds fsdp
# from SOURCE inside another project, by add_subdirectory and by FetchContent, as a shared library, with a LibTorch
# whose folders are those of LibTorch's archives. The compiler is CXX, the users' one, with fsdp's own warnings as
# errors.
set(_here "${CMAKE_CURRENT_LIST_DIR}")
set(_work "${PREFIX}-consumer")
file(REMOVE_RECURSE "${PREFIX}" "${_work}")
file(MAKE_DIRECTORY "${PREFIX}" "${_work}/libtorch")

function(step name)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY "${PREFIX}" RESULT_VARIABLE _result OUTPUT_VARIABLE _output ERROR_VARIABLE _output)
  if(NOT _result EQUAL 0)
    message(FATAL_ERROR "consumer: ${name} failed (${_result}):\n${_output}")
  endif()
  message(STATUS "consumer: ${name}: done")
endfunction()

# Builds a project without zlib, which only programs of this repository need: neither the library nor its users need it.
function(build name source)
  step("configuring ${name}" ${CMAKE_COMMAND} -S "${source}" -B "${_work}/${name}" -G "${GENERATOR}"
       -D "CMAKE_CXX_COMPILER=${CXX}" -D "CMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
       -D CMAKE_DISABLE_FIND_PACKAGE_ZLIB=ON ${ARGN})
  step("building ${name}" ${CMAKE_COMMAND} --build "${_work}/${name}")
endfunction()

step("installing" ${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${PREFIX}")
build(programs "${_here}" -D "CMAKE_PREFIX_PATH=${PREFIX}")
step("main" "${_work}/programs/main" "${_work}/programs/libplugin.so")
step("training" "${PREFIX}/bin/fsdprun" --nproc_per_node 2 "${_work}/programs/training")
step("from_python" "${_work}/programs/from_python")
step("from_python over gloo" "${PREFIX}/bin/fsdprun" --nproc_per_node 2 "${_work}/programs/from_python" gloo)
build(quickstart "${SOURCE}/examples/quickstart" -D "CMAKE_PREFIX_PATH=${PREFIX}")
step("quickstart" "${_work}/quickstart/quickstart")

# dpkg needs a list of packages in the root, and the root has none of the packages' dependencies.
set(_root "${_work}/root")
file(WRITE "${_root}/var/lib/dpkg/status" "")
file(MAKE_DIRECTORY "${_root}/var/lib/dpkg/info" "${_root}/var/lib/dpkg/updates")
get_filename_component(_cmake_bin "${CMAKE_COMMAND}" DIRECTORY)
step("packing" "${_cmake_bin}/cpack" --config "${BUILD_DIR}/CPackConfig.cmake" -G DEB -B "${_work}/packages")
file(GLOB _packages "${_work}/packages/fsdp-dev_*.deb" "${_work}/packages/fsdp-tools_*.deb")
step("installing packages" dpkg "--root=${_root}" --log=/dev/null --force-not-root --force-depends --install ${_packages})
step("the quickstart by pkg-config" sh -ec
     "${CXX} '${SOURCE}/examples/quickstart/quickstart.cpp' -o '${_work}/by_pkg_config' $(pkg-config --cflags --libs '${_root}/usr/lib/pkgconfig/fsdp.pc')")
step("the quickstart of the packages" "${_root}/usr/bin/fsdprun" --nproc_per_node 1 "${_work}/by_pkg_config")

# LibTorch's archives have these folders, and no Python around them.
foreach(_part include lib share)
  file(CREATE_LINK "${TORCH}/${_part}" "${_work}/libtorch/${_part}" SYMBOLIC)
endforeach()

# Both ways use one binary folder, so fsdp is compiled once. Its libraries are installed as one shared library.
set(_shared -D FSDP_WARNINGS_AS_ERRORS=ON -D BUILD_SHARED_LIBS=ON -D FSDP_INSTALL=ON -D "FSDP=${SOURCE}" -D "FSDP_TORCH=${_work}/libtorch")
foreach(_way add_subdirectory FetchContent)
  build(from_source "${_here}/from_source" ${_shared} -D "WAY=${_way}")
  step("quickstart by ${_way}" "${_work}/from_source/quickstart/quickstart")
endforeach()
step("public headers" ${CMAKE_COMMAND} --build "${_work}/from_source" --target fsdp_public_headers)
step("installing the shared library" ${CMAKE_COMMAND} --install "${_work}/from_source" --prefix "${PREFIX}-shared")
build(programs "${_here}" -D "CMAKE_PREFIX_PATH=${PREFIX}-shared" -D "fsdp_DIR=${PREFIX}-shared/lib/cmake/fsdp")
step("main over the shared library" "${_work}/programs/main" "${_work}/programs/libplugin.so" shared)

# With an older standard, the first and only error must say what to do.
execute_process(COMMAND "${CXX}" -std=c++17 -fsyntax-only -I "${PREFIX}/include" "${_here}/older_standard.cpp"
                RESULT_VARIABLE _result ERROR_VARIABLE _output)
string(REGEX MATCHALL "error: [^\n]*" _errors "${_output}")
if(_result EQUAL 0 OR NOT _errors MATCHES "^error: (#error )?\"fsdp needs C\\+\\+20: [^;]*$")
  message(FATAL_ERROR "consumer: expected 'fsdp needs C++20' and no other error with -std=c++17, found:\n${_output}")
endif()
