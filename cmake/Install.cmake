# Installs the library (headers, one library, files for find_package and pkg-config) and the programs. `cpack -G DEB` in
# the build folder makes a Debian package of each: fsdp-dev and fsdp-tools.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/fsdp")
set(_programs)
foreach(_program fsdprun fsdp-gpt fsdp-mnist fsdp-ckpt fsdp-bench)
  if(TARGET ${_program})
    list(APPEND _programs ${_program})
  endif()
endforeach()

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME dev)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/fsdp" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(
  TARGETS fsdp fsdp_settings
  EXPORT fsdpTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(_programs)
  install(TARGETS ${_programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tools)
endif()
install(EXPORT fsdpTargets NAMESPACE fsdp:: DESTINATION "${_package_dir}")

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/fsdpConfig.cmake.in" "${PROJECT_BINARY_DIR}/fsdpConfig.cmake"
  INSTALL_DESTINATION "${_package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(
  FILES "${PROJECT_BINARY_DIR}/fsdpConfig.cmake" "${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake"
  DESTINATION "${_package_dir}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# A program must link these libraries besides libfsdp.
get_target_property(_torch_options LibTorch::LibTorch INTERFACE_LINK_OPTIONS)
get_target_property(_torch_libraries LibTorch::LibTorch INTERFACE_LINK_LIBRARIES)
set(_libraries ${_torch_options} ${_torch_libraries})
list(TRANSFORM _libraries REPLACE "LINKER:" "-Wl,")
string(REPLACE ";" " " _libraries "${_libraries}")
file(RELATIVE_PATH _to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file("${PROJECT_SOURCE_DIR}/cmake/fsdp.pc.in" "${PROJECT_BINARY_DIR}/fsdp.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/fsdp.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_PACKAGE_CONTACT "the maintainers of fsdp")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Fully sharded data parallel training for LibTorch")
  set(CPACK_COMPONENTS_ALL dev tools)
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_DEV_PACKAGE_NAME fsdp-dev)
  set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
  set(CPACK_COMPONENT_DEV_DESCRIPTION
      "Headers and the library, built with LibTorch ${LibTorch_VERSION}.\nLibTorch itself is no part of the package.")
  set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME fsdp-tools)
  set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_TOOLS_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${LibTorch_ROOT}/lib")
  set(CPACK_COMPONENT_TOOLS_DESCRIPTION
      "fsdprun, fsdp-ckpt, fsdp-bench and the demonstration programs.\nThey load LibTorch ${LibTorch_VERSION} from ${LibTorch_ROOT}.")
  include(CPack)
endif()
