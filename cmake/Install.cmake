# Installs the library as a CMake package (headers, one library) and the programs.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/fsdp")
set(_programs)
foreach(_program fsdprun fsdp-gpt fsdp-mnist fsdp-ckpt fsdp-bench)
  if(TARGET ${_program})
    list(APPEND _programs ${_program})
  endif()
endforeach()

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/fsdp" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(
  TARGETS fsdp fsdp_settings
  EXPORT fsdpTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(_programs)
  install(TARGETS ${_programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
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
