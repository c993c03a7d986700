# Compiles through ccache if it is installed. The sloppiness settings are needed for precompiled headers.
find_program(FSDP_CCACHE ccache)
if(FSDP_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${FSDP_CCACHE})
endif()
