# SPDX-License-Identifier: Apache-2.0
# Every third-party library, found as a system package; CONTRIBUTING.md says what each is for.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(hwy CONFIG REQUIRED)
find_package(ZLIB REQUIRED)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
include(Blas)

if(KVTOOL_DEVELOPER)
  find_package(Catch2 2 CONFIG REQUIRED)
endif()
if(KVTOOL_BENCH)
  find_package(benchmark CONFIG REQUIRED)
endif()
