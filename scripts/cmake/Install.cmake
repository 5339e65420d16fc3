# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: the program with its pages and completions; libkvtool and libkvtool_study, shared and static, with two headers each
# and nothing else to include; and a CMake package and pkg-config files that find them.
include(CMakePackageConfigHelpers)

install(TARGETS kvtool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS kvtool_shared kvtool_study_shared EXPORT kvtool-shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT kvtool-shared NAMESPACE kvtool:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvtool)
if(TARGET kvtool_static)
  install(TARGETS kvtool_static kvtool_study_static EXPORT kvtool-static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT kvtool-static NAMESPACE kvtool:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvtool)
endif()
install(FILES lib/api/kvtool.h lib/api/kvtool.hpp lib/api/kvtool_study.h lib/api/kvtool_study.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# A relative path, so that the installed tree may be moved.
file(RELATIVE_PATH kvtool_pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(scripts/cmake/kvtool.pc.in kvtool.pc @ONLY)
configure_file(scripts/cmake/kvtool_study.pc.in kvtool_study.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvtool.pc ${PROJECT_BINARY_DIR}/kvtool_study.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
configure_package_config_file(scripts/cmake/kvtool-config.cmake.in kvtool-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvtool)
write_basic_package_version_file(kvtool-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvtool-config.cmake ${PROJECT_BINARY_DIR}/kvtool-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvtool)

# Installs all pages and the files that they link to; scripts/check/links.py follows the links of installed pages. The
# static tarball has this component beside the program.
set(documents ${CMAKE_INSTALL_DOCDIR})
install(FILES README.md LICENSE CHANGELOG.md CONTRIBUTING.md SECURITY.md DESTINATION ${documents} COMPONENT documents)
install(FILES ${PROJECT_BINARY_DIR}/generated/copyright DESTINATION ${documents} COMPONENT documents)
install(FILES scripts/check/llama_restore.py DESTINATION ${documents}/scripts/check COMPONENT documents)
install(FILES lib/api/kvtool.h lib/api/kvtool.hpp lib/api/kvtool.abi lib/api/kvtool_study.h lib/api/kvtool_study.hpp
              lib/api/kvtool_study.abi DESTINATION ${documents}/lib/api COMPONENT documents)
install(DIRECTORY docs DESTINATION ${documents} COMPONENT documents)
install(DIRECTORY .github/workflows-examples DESTINATION ${documents}/.github COMPONENT documents)
file(GLOB_RECURSE grammars RELATIVE ${PROJECT_SOURCE_DIR} lib/FORMAT.md formats/FORMAT.md)
foreach(grammar ${grammars})
  cmake_path(GET grammar PARENT_PATH folder)
  install(FILES ${grammar} DESTINATION ${documents}/${folder} COMPONENT documents)
endforeach()
install(DIRECTORY scripts/decoder DESTINATION ${documents}/scripts COMPONENT documents FILES_MATCHING PATTERN "*.py")
install(DIRECTORY scripts/scale DESTINATION ${documents}/scripts COMPONENT documents
        FILES_MATCHING REGEX "/(kvtool-[a-z]+\\.sbatch|nightly\\.sh|kubernetes-job\\.yaml|(ray|dask)_corpus\\.py)$")
# Installs sources, because this program is built by one command on its page, with the llama.cpp that it is to record.
install(DIRECTORY apps/capture-llama DESTINATION ${documents}/apps COMPONENT documents PATTERN CMakeLists.txt EXCLUDE)
if(TARGET kvtool_manual)
  set(written ${PROJECT_BINARY_DIR}/share)
  install(DIRECTORY ${written}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(DIRECTORY ${written}/schema DESTINATION ${CMAKE_INSTALL_DATADIR}/kvtool)
  install(FILES ${written}/kvtool.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME kvtool)
  install(FILES ${written}/kvtool.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions RENAME _kvtool)
  install(FILES ${written}/kvtool.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
