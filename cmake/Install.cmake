# Installs the library as a CMake package: headers, one static library for each layer, the programs.
#
# FSDP_LAYERS (global property) lists what fsdp_library defined; libraries of tests and programs are left out here.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/fsdp")
set(_layers)
get_property(_libraries GLOBAL PROPERTY FSDP_LAYERS)
foreach(_library IN LISTS _libraries)
  get_target_property(_source_dir ${_library} SOURCE_DIR)
  if(_source_dir MATCHES "^${PROJECT_SOURCE_DIR}/src/")
    list(APPEND _layers ${_library})
  endif()
endforeach()
set(_programs)
foreach(_program fsdprun gpt mnist fsdp-ckpt fsdp-bench fsdp-plan)
  if(TARGET ${_program})
    list(APPEND _programs ${_program})
  endif()
endforeach()

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/fsdp" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(
  TARGETS fsdp fsdp_settings ${_layers}
  EXPORT fsdpTargets
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
