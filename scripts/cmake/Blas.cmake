# SPDX-License-Identifier: Apache-2.0
# kv_cblas: OpenBLAS built without threads. A threaded OpenBLAS starts its threads when it is loaded, before
# main, and waits for them at exit: under an address-space limit that wait never ends, whatever the command
# did. Linked as an archive, for at run time Debian's alternatives would choose the threaded library.
find_library(KVTOOL_BLAS_LIBRARY NAMES libopenblas.a PATH_SUFFIXES openblas-serial
             DOC "OpenBLAS without threads (an archive)")
find_path(KVTOOL_BLAS_INCLUDE NAMES cblas.h PATH_SUFFIXES openblas-serial openblas)
if(NOT KVTOOL_BLAS_LIBRARY OR NOT KVTOOL_BLAS_INCLUDE)
  message(FATAL_ERROR "no serial OpenBLAS found (Debian: libopenblas-serial-dev); "
                      "elsewhere set KVTOOL_BLAS_LIBRARY and KVTOOL_BLAS_INCLUDE")
endif()

add_library(kv_cblas INTERFACE IMPORTED)
target_include_directories(kv_cblas SYSTEM INTERFACE ${KVTOOL_BLAS_INCLUDE})
target_link_libraries(kv_cblas INTERFACE ${KVTOOL_BLAS_LIBRARY})
# Its work buffers are handed out without a lock, and what malloc gives is not looked at everywhere;
# lib/study/dense/gemm.cc sees to both.
target_link_options(kv_cblas INTERFACE -Wl,--wrap=blas_memory_alloc -Wl,--wrap=blas_memory_free -Wl,--wrap=malloc)
