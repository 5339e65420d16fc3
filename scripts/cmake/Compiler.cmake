# SPDX-License-Identifier: Apache-2.0
# Language level, warnings and sanitizers for every target of this project.
if(NOT CMAKE_SIZEOF_VOID_P EQUAL 8 OR CMAKE_CXX_BYTE_ORDER STREQUAL BIG_ENDIAN)
  message(FATAL_ERROR "kvtool maps files of any size and reads little-endian values in place: it needs a 64-bit little-endian "
                      "processor, such as x86_64 or aarch64; ${CMAKE_SYSTEM_PROCESSOR} is none")
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# A launcher that the caller has set is kept.
find_program(KVTOOL_CCACHE_PROGRAM ccache)
mark_as_advanced(KVTOOL_CCACHE_PROGRAM)
if(KVTOOL_CCACHE AND KVTOOL_CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${KVTOOL_CCACHE_PROGRAM})
endif()

# Makes inline variables ordinary weak symbols: as unique symbols they would stay global in libkvtool.a, and would keep
# libkvtool.so in memory after dlclose.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-gnu-unique>)
endif()

add_library(kv_options INTERFACE)
target_compile_options(kv_options INTERFACE -Wall -Wextra -Wpedantic $<$<BOOL:${KVTOOL_WERROR}>:-Werror>)
# GCC 12 reports overlaps in std::string assignments that cannot occur (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(kv_options INTERFACE -Wno-restrict)
endif()
# Results must not depend on whether the compiler fuses multiplications and additions, nor on the sign of char, which is
# unsigned on aarch64 Linux.
target_compile_options(kv_options INTERFACE -ffp-contract=off -fsigned-char)

if(KVTOOL_SANITIZE)
  add_compile_options(-fsanitize=${KVTOOL_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # Checking each use of a pointer took 40 % of the build's time (GCC 12, lib/core/archive: 89 s with the checks, 54 s
  # without). All that it finds traps anyway, except misalignment; the folders that read files and decode keep that
  # check.
  if(KVTOOL_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize=null,vptr,object-size,alignment)
    set(kv_alignment -fsanitize=alignment)
  endif()
  add_link_options(-fsanitize=${KVTOOL_SANITIZE})
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
  # The standard library narrows on purpose. All code of this project is checked.
  if(KVTOOL_SANITIZE MATCHES implicit-conversion)
    add_compile_options(-fsanitize-ignorelist=${CMAKE_CURRENT_LIST_DIR}/implicit-conversion.txt)
  endif()
  # In instrumented code GCC 12 warns of uninitialised uses inside std::regex that cannot occur.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
endif()

# Coverage of the libraries guides the fuzzer; otherwise it would see only the targets' own files.
if(KVTOOL_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# libc++ before LLVM 20 declares std::jthread only on request.
if(APPLE)
  add_compile_definitions(_LIBCPP_ENABLE_EXPERIMENTAL)
endif()

# Links a program, or a library that exports few names, without the functions that neither main nor these names reach.
if(APPLE)
  set(kv_drop_unused -Wl,-dead_strip)
else()
  set(kv_drop_unused -Wl,--gc-sections)
endif()

# Counts the cost of an input in basic blocks. The counting code itself is not counted.
if(KVTOOL_COUNT_STEPS)
  add_library(kv_cost STATIC ${PROJECT_SOURCE_DIR}/tests/fuzz/cost.cc)
  target_include_directories(kv_cost PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(kv_cost PRIVATE KVTOOL_COUNT_STEPS)
  target_compile_options(kv_options INTERFACE $<BUILD_INTERFACE:-fsanitize-coverage=trace-pc>)
  target_link_libraries(kv_options INTERFACE $<BUILD_INTERFACE:kv_cost>)
endif()

# An undetected overflow ends the process instead of giving an attacker control of it. Sanitizers find it first, and
# FORTIFY needs -O1.
if(KVTOOL_HARDEN AND NOT KVTOOL_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL Debug)
  add_compile_options(-fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
  if(NOT APPLE) # Apple's linker binds symbols at start by default
    add_link_options(-Wl,-z,relro,-z,now)
  endif()
  include(CheckPIESupported)
  check_pie_supported()
endif()

# Removes the build folder's path from everything that is shipped, so that trees at two places compile to the same bytes
# (scripts/check/same_build.sh). Debug builds keep the paths, because debuggers find the sources by them.
if(CMAKE_BUILD_TYPE STREQUAL Release)
  add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}/= -ffile-prefix-map=${PROJECT_BINARY_DIR}/=build/)
endif()

# In a position-independent program every pointer in a table costs a relocation of 24 bytes, or one bit in packed form,
# which loaders understand from glibc 2.36 on.
include(CheckCXXSymbolExists)
include(CheckLinkerFlag)
check_cxx_symbol_exists("DT_RELR" elf.h KVTOOL_GLIBC_RELR)
# GNU ld 2.40 for aarch64 only warns that it ignores the option.
check_linker_flag(CXX -Wl,--fatal-warnings,-z,pack-relative-relocs KVTOOL_LINKER_RELR)
if(KVTOOL_GLIBC_RELR AND KVTOOL_LINKER_RELR)
  set(KVTOOL_RELR ON)
endif()
