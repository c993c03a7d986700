# Sets NcclHeaders_FOLDERS to the folders of the CUDA and NCCL headers that ProcessGroupNCCL.hpp needs, or to nothing if
# one is missing.
#
# Most of them come with GPU builds of torch, in packages beside it. The folders crt and nv are in
# cuda-toolkit[crt,cccl], which scripts/setup adds. If a CUDA header is missing there, all CUDA headers come from a
# toolkit (CUDA_HOME, else /usr/local/cuda), because headers of two releases do not work together.

# Sets `result` to the folders of all headers, or to nothing if one header is in none of the folders.
function(fsdp_folders_of result headers folders)
  set(_result)
  foreach(_header IN LISTS headers)
    set(_found)
    foreach(_folder IN LISTS folders)
      if(NOT _found AND EXISTS "${_folder}/${_header}")
        set(_found "${_folder}")
      endif()
    endforeach()
    if(NOT _found)
      set(_result)
      break()
    endif()
    list(APPEND _result "${_found}")
  endforeach()
  set(${result} "${_result}" PARENT_SCOPE)
endfunction()

set(NcclHeaders_FOLDERS)
if(LibTorch_HAS_CUDA)
  file(GLOB _packages LIST_DIRECTORIES TRUE "${LibTorch_ROOT}/../nvidia/*/include")
  set(_toolkit "$ENV{CUDA_HOME}/include" /usr/local/cuda/include /usr/include)
  set(_cuda_headers cuda_runtime_api.h crt/host_config.h nv/target cublas_v2.h cusolverDn.h cusparse.h)
  fsdp_folders_of(_cuda "${_cuda_headers}" "${_packages}")
  if(NOT _cuda)
    fsdp_folders_of(_cuda "${_cuda_headers}" "${_toolkit}")
  endif()
  fsdp_folders_of(_nccl nccl.h "${_packages};${_toolkit}")
  if(_cuda AND _nccl)
    set(NcclHeaders_FOLDERS ${_cuda} ${_nccl})
    list(REMOVE_DUPLICATES NcclHeaders_FOLDERS)
    list(REMOVE_ITEM NcclHeaders_FOLDERS /usr/include) # The compiler always searches this folder.
  else()
    list(JOIN _cuda_headers ", " _names)
    message(STATUS "fsdp: no NCCL backend: LibTorch has CUDA, but not all headers were found: ${_names}, nccl.h")
  endif()
endif()
if(FSDP_REQUIRE_NCCL AND NOT NcclHeaders_FOLDERS)
  message(FATAL_ERROR "fsdp: no NCCL backend, but FSDP_REQUIRE_NCCL is on: ${LibTorch_ROOT} is a CPU build, or headers are missing")
endif()
