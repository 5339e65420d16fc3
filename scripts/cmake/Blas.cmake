# SPDX-License-Identifier: Apache-2.0
# On macOS kv_cblas is Accelerate, which every Mac has, and which many threads may call at once.
if(APPLE)
  find_path(KVTOOL_BLAS_INCLUDE NAMES cblas.h DOC "Folder of Accelerate's cblas.h"
            PATH_SUFFIXES System/Library/Frameworks/Accelerate.framework/Frameworks/vecLib.framework/Headers)
  if(NOT KVTOOL_BLAS_INCLUDE)
    message(FATAL_ERROR "no cblas.h of Accelerate found: install the command line tools (xcode-select --install)")
  endif()
  set(KVTOOL_BLAS_LIBRARY "-framework Accelerate" CACHE STRING "What is linked for cblas_sgemm and cblas_dgemm")
  add_library(kv_cblas INTERFACE IMPORTED)
  target_include_directories(kv_cblas SYSTEM INTERFACE ${KVTOOL_BLAS_INCLUDE})
  target_compile_definitions(kv_cblas INTERFACE ACCELERATE_NEW_LAPACK)
  target_link_libraries(kv_cblas INTERFACE "${KVTOOL_BLAS_LIBRARY}")
  return()
endif()

# Elsewhere kv_cblas is OpenBLAS built without threads. A threaded OpenBLAS starts its threads when it is loaded, before
# main, and waits for them at exit: under an address-space limit that wait never ends, whatever the command did. It is
# linked as an archive, because Debian's alternatives would choose the threaded library at run time.
find_library(KVTOOL_BLAS_LIBRARY NAMES libopenblas.a PATH_SUFFIXES openblas-serial
             DOC "OpenBLAS without threads (an archive)")
find_path(KVTOOL_BLAS_INCLUDE NAMES cblas.h PATH_SUFFIXES openblas-serial openblas)
if(NOT KVTOOL_BLAS_LIBRARY OR NOT KVTOOL_BLAS_INCLUDE)
  message(FATAL_ERROR "no serial OpenBLAS found (Debian: libopenblas-serial-dev); "
                      "elsewhere set KVTOOL_BLAS_LIBRARY and KVTOOL_BLAS_INCLUDE")
endif()

# An OpenBLAS for many processors has a table of kernels for each, and a program that calls two functions would contain
# all 25 MB of them. So table entries that no product of floats or doubles uses are redirected to one function, which
# aborts; each processor keeps its own kernels for the rest. Other builds of OpenBLAS have no tables and stay as they
# are.
set(used "^([sd](gemm|gemv|scal|copy|axpy|dot)|setparam_)")
set(KVTOOL_BLAS_LEFT_OUT ${CMAKE_BINARY_DIR}/generated/blas_left_out)
file(MAKE_DIRECTORY ${KVTOOL_BLAS_LEFT_OUT})
execute_process(COMMAND ${CMAKE_AR} t ${KVTOOL_BLAS_LIBRARY} OUTPUT_VARIABLE tables COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "setparam_[^\n]*" tables "${tables}")
if(tables)
  execute_process(COMMAND ${CMAKE_AR} x ${KVTOOL_BLAS_LIBRARY} ${tables} WORKING_DIRECTORY ${KVTOOL_BLAS_LEFT_OUT}
                  COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_NM} -u ${tables} WORKING_DIRECTORY ${KVTOOL_BLAS_LEFT_OUT} OUTPUT_VARIABLE kernels
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[a-z][a-z0-9_]*_[A-Z][A-Z0-9_]*" kernels "${kernels}")
  list(FILTER kernels EXCLUDE REGEX "${used}")
  list(REMOVE_DUPLICATES kernels)
  list(TRANSFORM kernels REPLACE "(.+)" "void \\1(void) __attribute__((alias(\"kv_blas_left_out\")))|")
  string(REPLACE "|" ";\n" kernels "${kernels}")
  string(REPLACE "\n;" "\n" kernels "${kernels}")
  set(source ${KVTOOL_BLAS_LEFT_OUT}/left_out.c)
  set(archive ${KVTOOL_BLAS_LEFT_OUT}/libleft_out.a)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT "void abort(void);\nvoid kv_blas_left_out(void) { abort(); }\n${kernels}")
  if(NOT EXISTS ${archive} OR ${source} IS_NEWER_THAN ${archive})
    execute_process(COMMAND ${CMAKE_C_COMPILER} -O1 -fPIC -c left_out.c WORKING_DIRECTORY ${KVTOOL_BLAS_LEFT_OUT}
                    COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${CMAKE_AR} rcsD ${archive} left_out.o WORKING_DIRECTORY ${KVTOOL_BLAS_LEFT_OUT}
                    COMMAND_ERROR_IS_FATAL ANY)
  endif()
endif()

add_library(kv_cblas INTERFACE IMPORTED)
target_include_directories(kv_cblas SYSTEM INTERFACE ${KVTOOL_BLAS_INCLUDE})
if(tables)
  # Forces the linker to load the redirected symbols before it searches OpenBLAS's archive for them.
  target_link_options(kv_cblas INTERFACE -Wl,--undefined=kv_blas_left_out)
  target_link_libraries(kv_cblas INTERFACE ${archive})
endif()
target_link_libraries(kv_cblas INTERFACE ${KVTOOL_BLAS_LIBRARY})
# OpenBLAS hands out its work buffers without a lock, and does not check every result of malloc. lib/study/dense/gemm.cc
# replaces both functions.
target_compile_definitions(kv_cblas INTERFACE KVTOOL_WRAPS_BLAS)
target_link_options(kv_cblas INTERFACE -Wl,--wrap=blas_memory_alloc -Wl,--wrap=blas_memory_free -Wl,--wrap=malloc)
if(tables AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Chooses kernels for processors that are newer than OpenBLAS; lib/study/dense/gemm.cc gives the reason. Only that
  # file needs the definition.
  set(KVTOOL_WRAPS_CORE ON)
  target_link_options(kv_cblas INTERFACE -Wl,--wrap=gotoblas_dynamic_init -Wl,--wrap=getenv)
endif()
