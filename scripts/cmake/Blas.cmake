# SPDX-License-Identifier: Apache-2.0
# kv_cblas on macOS: Accelerate, which every Mac has. It may be called from many threads at once.
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

# kv_cblas elsewhere: OpenBLAS built without threads. A threaded OpenBLAS starts its threads when it is loaded, before
# main, and waits for them at exit: under an address-space limit that wait never ends, whatever the command
# did. Linked as an archive, for at run time Debian's alternatives would choose the threaded library.
find_library(KVTOOL_BLAS_LIBRARY NAMES libopenblas.a PATH_SUFFIXES openblas-serial
             DOC "OpenBLAS without threads (an archive)")
find_path(KVTOOL_BLAS_INCLUDE NAMES cblas.h PATH_SUFFIXES openblas-serial openblas)
if(NOT KVTOOL_BLAS_LIBRARY OR NOT KVTOOL_BLAS_INCLUDE)
  message(FATAL_ERROR "no serial OpenBLAS found (Debian: libopenblas-serial-dev); "
                      "elsewhere set KVTOOL_BLAS_LIBRARY and KVTOOL_BLAS_INCLUDE")
endif()

# OpenBLAS for many processors has a table of all its kernels for each, so that a program of two functions holds the 25 MB
# of all. Of a table's entries, those that no product of floats or doubles uses lead to one function, which aborts; the
# kernels that are used are those of each processor, as before. Other builds of OpenBLAS have no tables, and nothing is left out.
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
  # Wanted by name, so that its symbols are there before OpenBLAS's archive is searched for them.
  target_link_options(kv_cblas INTERFACE -Wl,--undefined=kv_blas_left_out)
  target_link_libraries(kv_cblas INTERFACE ${archive})
endif()
target_link_libraries(kv_cblas INTERFACE ${KVTOOL_BLAS_LIBRARY})
# Its work buffers are handed out without a lock, and what malloc gives is not looked at everywhere;
# lib/study/dense/gemm.cc sees to both.
target_compile_definitions(kv_cblas INTERFACE KVTOOL_WRAPS_BLAS)
target_link_options(kv_cblas INTERFACE -Wl,--wrap=blas_memory_alloc -Wl,--wrap=blas_memory_free -Wl,--wrap=malloc)
if(tables AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Chooses kernels for a processor that is newer than OpenBLAS; lib/study/dense/gemm.cc has the reason. Only that file
  # needs the definition.
  set(KVTOOL_WRAPS_CORE ON)
  target_link_options(kv_cblas INTERFACE -Wl,--wrap=gotoblas_dynamic_init -Wl,--wrap=getenv)
endif()
