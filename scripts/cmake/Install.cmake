# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: the program, the libraries with their headers, and a CMake package that exports
# them, so that an engine can link the same kernels with find_package(kvtool).
include(CMakePackageConfigHelpers)

install(TARGETS kvtool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# libkvtool: the component `library`, which needs nothing else.
install(TARGETS kvtool_shared EXPORT kvtool-library-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES lib/api/kvtool.h lib/api/kvtool.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# Relative, so that the installed tree may be moved.
file(RELATIVE_PATH kvtool_pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(scripts/cmake/kvtool.pc.in kvtool.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvtool.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(EXPORT kvtool-library-targets NAMESPACE kvtool:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvtool)
# The core is a component of its own: find_package(kvtool COMPONENTS core) needs no BLAS, no JSON and no zlib.
install(TARGETS kv_base kv_kernels kv_core kv_options EXPORT kvtool-core-targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS kv_dense kv kv_formats EXPORT kvtool-targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY lib formats DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvtool
        FILES_MATCHING PATTERN "*.h" PATTERN api EXCLUDE)
install(DIRECTORY lib formats DESTINATION ${CMAKE_INSTALL_DOCDIR}
        FILES_MATCHING PATTERN "FORMAT.md")
install(DIRECTORY apps/kvtool/schema DESTINATION ${CMAKE_INSTALL_DATADIR}/kvtool)
install(EXPORT kvtool-core-targets NAMESPACE kvtool:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvtool)
install(EXPORT kvtool-targets NAMESPACE kvtool:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvtool)
configure_package_config_file(scripts/cmake/kvtool-config.cmake.in kvtool-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvtool)
write_basic_package_version_file(kvtool-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvtool-config.cmake
              ${PROJECT_BINARY_DIR}/kvtool-config-version.cmake
              scripts/cmake/Blas.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvtool)
