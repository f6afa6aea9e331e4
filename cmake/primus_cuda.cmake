# The GPU half: one shared library that the programs load on request, so that they link no CUDA library themselves.
# PRIMUS_HAS_CUDA says whether it is built; a status line says why not.
set(PRIMUS_CUDA AUTO CACHE STRING "Build the GPU half: AUTO (where nvcc and libtorch_cuda.so are), ON, OFF")
set_property(CACHE PRIMUS_CUDA PROPERTY STRINGS AUTO ON OFF)
set(PRIMUS_CUDA_ARCHITECTURES "sm_90;compute_80" CACHE STRING
  "Targets of the portable kernels: sm_NN machine code, compute_NN PTX that the driver compiles (later and other devices)")
set(PRIMUS_HAS_CUDA FALSE)

# primus_cuda_gencode(OUT TARGET...): nvcc's flags for sm_90, compute_80, sm_90a, ...
function(primus_cuda_gencode out)
  set(flags)
  foreach(target ${ARGN})
    string(REGEX REPLACE "^(sm|compute)_" "compute_" virtual ${target})
    list(APPEND flags "-gencode=arch=${virtual},code=${target}")
  endforeach()
  set(${out} ${flags} PARENT_SCOPE)
endfunction()

function(primus_find_cuda)
  set(missing)
  find_program(PRIMUS_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT PRIMUS_NVCC)
    list(APPEND missing nvcc)
  endif()
  if(NOT EXISTS "${PRIMUS_TORCH_ROOT}/lib/libtorch_cuda.so")
    list(APPEND missing libtorch_cuda.so)
  endif()
  # libtorch's own runtime: a second one would have its own idea of the current device.
  file(GLOB cudart "${PRIMUS_TORCH_ROOT}/lib/libcudart*.so*" "${PRIMUS_TORCH_ROOT}/../nvidia/*/lib/libcudart.so.*")
  if(NOT cudart)
    list(APPEND missing libcudart.so)
  endif()
  if(missing)
    list(JOIN missing ", " missing)
    if(PRIMUS_CUDA STREQUAL "ON")
      message(FATAL_ERROR "PRIMUS_CUDA=ON, but there is no ${missing}")
    endif()
    message(STATUS "GPU half: left out (no ${missing})")
    return()
  endif()
  list(GET cudart 0 cudart)
  set(PRIMUS_CUDART "${cudart}" PARENT_SCOPE)
  set(PRIMUS_HAS_CUDA TRUE PARENT_SCOPE)
endfunction()

if(PRIMUS_CUDA STREQUAL "OFF")
  message(STATUS "GPU half: left out (PRIMUS_CUDA=OFF)")
else()
  primus_find_cuda()
endif()

if(PRIMUS_HAS_CUDA)
  set(CMAKE_CUDA_COMPILER "${PRIMUS_NVCC}")
  set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
  set(CMAKE_CUDA_ARCHITECTURES OFF)  # our own flags: sm_90a and sm_90 side by side
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # which CMake 3.25 does not know of nvcc 12 and later
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  message(STATUS "GPU half: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, ${PRIMUS_CUDA_ARCHITECTURES}")

  # The CUDA build of libtorch, for the GPU half's C++ files.
  add_library(primus_torch_cuda INTERFACE)
  add_library(primus::torch_cuda ALIAS primus_torch_cuda)
  target_include_directories(primus_torch_cuda SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  # libtorch_cuda registers ATen's CUDA kernels when it is loaded, so it is needed even where no symbol of it is used.
  target_link_libraries(primus_torch_cuda INTERFACE primus::torch
    "-Wl,--push-state,--no-as-needed" torch_cuda "-Wl,--pop-state" c10_cuda "${PRIMUS_CUDART}")
endif()

# primus_cuda_kernels(NAME SOURCES...): kernels as objects, without torch's headers. `*_sm90.cu` may use Hopper's own
# instructions; every other file is portable.
function(primus_cuda_kernels name)
  add_library(${name} OBJECT ${ARGN})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  primus_cuda_gencode(portable ${PRIMUS_CUDA_ARCHITECTURES})
  primus_cuda_gencode(hopper sm_90a)
  foreach(source ${ARGN})
    if(source MATCHES "_sm90\\.cu$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${hopper}")
    else()
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${portable}")
    endif()
  endforeach()
  target_compile_options(${name} PRIVATE -lineinfo --expt-relaxed-constexpr --extended-lambda "-Xcompiler=-Wall,-Wextra")
  if(PRIMUS_WARNINGS_AS_ERRORS)
    target_compile_options(${name} PRIVATE "-Werror=all-warnings" "-Xcompiler=-Werror")
  endif()
endfunction()
