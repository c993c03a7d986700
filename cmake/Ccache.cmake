# Compiles through ccache where it is installed. Precompiled headers need the two sloppiness settings.
find_program(FSDP_CCACHE ccache)
if(FSDP_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${FSDP_CCACHE})
endif()
