# One function a kind of target, so that a folder's CMakeLists.txt says only what is its own.

# primus_library(NAME SOURCES ... [DEPS ...]): a static library of the planning half.
function(primus_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${name} PUBLIC ${arg_DEPS} PRIVATE primus_flags)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE -O2)  # a tenth less compilation than -O3; see primus_hot_library
  endif()
endfunction()

# primus_hot_library(NAME): the few libraries whose own loops a run's speed hangs on.
function(primus_hot_library name)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE -O3)
  endif()
endfunction()

# primus_torch_library(NAME SOURCES ... [DEPS ...]): a static library of the training half, with the precompiled ATen header.
function(primus_torch_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  primus_library(${name} SOURCES ${arg_SOURCES} DEPS ${arg_DEPS} primus::torch)
  primus_use_aten_header(${name})
endfunction()

# Flags of every file that includes ATen: they must be the same ones, or the precompiled header cannot be shared.
function(primus_aten_flags target)
  if(PRIMUS_CPU_ARCH AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(${target} PRIVATE "-march=${PRIMUS_CPU_ARCH}")
  endif()
  target_compile_options(${target} PRIVATE -fopenmp -fno-math-errno -fno-trapping-math)
endfunction()

# The owner of the precompiled header of narrow ATen headers: 2 s a file instead of 10.
function(primus_use_aten_header_owner)
  add_library(primus_aten_header STATIC "${PROJECT_SOURCE_DIR}/src/ops/aten.cpp")
  target_include_directories(primus_aten_header PUBLIC "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(primus_aten_header PUBLIC primus::torch primus_base PRIVATE primus_flags)
  primus_aten_flags(primus_aten_header)
  target_precompile_headers(primus_aten_header PRIVATE "${PROJECT_SOURCE_DIR}/src/ops/aten.hpp")
endfunction()

function(primus_use_aten_header target)
  primus_aten_flags(${target})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    # It overrides CMake's own -fPIE, with which a program could not use the libraries' precompiled header.
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${target} REUSE_FROM primus_aten_header)
endfunction()

# Tests without libtorch, in one target and under one label: what the sanitizers run on in minutes.
add_custom_target(planning_tests)

# primus_test(NAME SOURCES ... [DEPS ...] [TORCH] [TIMEOUT seconds]): one GoogleTest program, one ctest entry.
# A per-case entry would load libtorch once a case.
function(primus_test name)
  cmake_parse_arguments(arg "TORCH" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gmock_main primus_flags)
  if(arg_TORCH)
    target_link_libraries(${name} PRIVATE primus_test_support)
    primus_use_aten_header(${name})
  endif()
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE -O1)  # their own code takes microseconds, and its compilation a third longer at -O3
  endif()
  target_compile_definitions(${name} PRIVATE PRIMUS_SOURCE_DIR="${PROJECT_SOURCE_DIR}" PRIMUS_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  add_test(NAME ${name} COMMAND ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(PRIMUS_SANITIZE)
    math(EXPR arg_TIMEOUT "4 * ${arg_TIMEOUT}")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT})
  if(arg_TORCH)
    # Two threads each, and ctest knows it: OpenMP's waiting threads spin, so two such tests on two cores crawl.
    # libtorch keeps allocations to the end of the process, which is no leak of ours.
    set_tests_properties(${name} PROPERTIES LABELS training PROCESSORS 2 ENVIRONMENT "OMP_NUM_THREADS=2;OMP_WAIT_POLICY=passive;ASAN_OPTIONS=detect_leaks=0")
  else()
    set_tests_properties(${name} PROPERTIES LABELS planning)
    add_dependencies(planning_tests ${name})
  endif()
endfunction()
