# Finds LibTorch and defines the imported target LibTorch::LibTorch.
#
# FSDP_TORCH, a variable of CMake or of the environment, names a LibTorch folder or the folder of an installed `torch`
# Python package. If it is not set, these places are searched in this order: CMAKE_PREFIX_PATH; LibTorch_HINT, which an
# installed fsdp sets; and the virtual environment FSDP_VENV, by default .venv of the repository. torch's own
# TorchConfig.cmake is not used, because with a GPU build it requires the CUDA toolkit, which programs that only link do
# not need.
#
# Result variables: LibTorch_FOUND, LibTorch_VERSION, LibTorch_ROOT, LibTorch_HAS_CUDA

if(NOT FSDP_TORCH AND DEFINED ENV{FSDP_TORCH})
  set(FSDP_TORCH "$ENV{FSDP_TORCH}")
endif()
if(FSDP_TORCH)
  set(_candidates "${FSDP_TORCH}")
else()
  string(REPLACE ":" ";" _env_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  if(NOT FSDP_VENV)
    set(FSDP_VENV "${PROJECT_SOURCE_DIR}/.venv")
  endif()
  file(GLOB _venv "${FSDP_VENV}/lib/python3*/site-packages/torch")
  set(_candidates ${CMAKE_PREFIX_PATH} ${_env_prefixes} ${LibTorch_HINT} ${_venv})
endif()

unset(LibTorch_ROOT)
foreach(_candidate IN LISTS _candidates)
  # A candidate is the folder itself, a folder that contains `torch`, or torch.utils.cmake_prefix_path or its subfolder
  # Torch.
  foreach(_suffix "" "/torch" "/../.." "/../../..")
    if(NOT LibTorch_ROOT AND EXISTS "${_candidate}${_suffix}/include/torch/csrc/api/include/torch/torch.h")
      get_filename_component(LibTorch_ROOT "${_candidate}${_suffix}" REALPATH)
    endif()
  endforeach()
endforeach()

unset(LibTorch_VERSION)
if(LibTorch_ROOT)
  # torch 2.9 and newer have the numbers in torch/headeronly/version.h, and older releases in
  # torch/csrc/api/include/torch/version.h.
  foreach(_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(NOT LibTorch_VERSION AND EXISTS "${LibTorch_ROOT}/include/${_header}")
      file(STRINGS "${LibTorch_ROOT}/include/${_header}" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
      string(REPLACE ";" "." LibTorch_VERSION "${_numbers}")
    endif()
  endforeach()
endif()

set(_reason "No LibTorch was found: run scripts/setup, or name one with FSDP_TORCH=FOLDER.")
if(FSDP_TORCH)
  set(_reason "FSDP_TORCH names ${FSDP_TORCH}, where there is no LibTorch and no torch package.")
elseif(LibTorch_ROOT)
  set(_reason "${LibTorch_ROOT} has no version header of LibTorch.")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch REQUIRED_VARS LibTorch_ROOT LibTorch_VERSION REASON_FAILURE_MESSAGE "${_reason}")
if(LibTorch_FOUND AND (LibTorch_VERSION VERSION_LESS 2.11 OR LibTorch_VERSION VERSION_GREATER_EQUAL 2.16))
  message(FATAL_ERROR "LibTorch ${LibTorch_VERSION} at ${LibTorch_ROOT} is not supported: fsdp needs 2.11 to 2.15.")
endif()

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  set(_libraries torch torch_cpu c10)
  if(EXISTS "${LibTorch_ROOT}/lib/libtorch_cuda.so")
    set(LibTorch_HAS_CUDA TRUE)
    list(APPEND _libraries torch_cuda c10_cuda)
  else()
    set(LibTorch_HAS_CUDA FALSE)
  endif()
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_include_directories(
    LibTorch::LibTorch SYSTEM INTERFACE "${LibTorch_ROOT}/include" "${LibTorch_ROOT}/include/torch/csrc/api/include")
  target_compile_features(LibTorch::LibTorch INTERFACE cxx_std_20)
  target_link_options(LibTorch::LibTorch INTERFACE "LINKER:-rpath,${LibTorch_ROOT}/lib" "LINKER:--disable-new-dtags")
  # LibTorch exports functions of std::filesystem from the C++ library that it was built with, and those of a GPU build
  # crash (remove_all). A program uses the first library that has these functions, so its own C++ library comes first.
  target_link_libraries(LibTorch::LibTorch INTERFACE "-Wl,--no-as-needed,-lstdc++,--as-needed")
  foreach(_library IN LISTS _libraries)
    # libtorch_cuda registers its kernels when it is loaded. No symbol refers to it, so --no-as-needed must keep it.
    target_link_libraries(
      LibTorch::LibTorch INTERFACE "-Wl,--no-as-needed,${LibTorch_ROOT}/lib/lib${_library}.so,--as-needed")
  endforeach()
endif()
