# SPDX-License-Identifier: Apache-2.0
# KVTOOL_GIT is the commit that this tree is built from. A new commit causes a new configuration and compiles one
# source, version.cc. In a tarball made by `git archive`, the commit is that in archived.txt; in other copies without a
# history it is "unknown". If the commit has a tag vX.Y.Z, a tree with another version is not built.
execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} rev-parse --short=10 HEAD
                OUTPUT_VARIABLE KVTOOL_GIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} describe --tags --exact-match --match "v[0-9]*"
                OUTPUT_VARIABLE kvtool_tag OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(kvtool_tag AND NOT kvtool_tag STREQUAL "v${PROJECT_VERSION}")
  message(FATAL_ERROR "this commit has the tag ${kvtool_tag}, and CMakeLists.txt says ${PROJECT_VERSION}")
endif()
if(NOT KVTOOL_GIT)
  file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/archived.txt KVTOOL_GIT REGEX "^[0-9a-f]+$")
endif()
if(NOT KVTOOL_GIT)
  set(KVTOOL_GIT unknown)
endif()
# Git appends a line to this file whenever HEAD moves to another commit, in worktrees, too.
execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} rev-parse --git-path logs/HEAD
                OUTPUT_VARIABLE kvtool_moves OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(kvtool_moves)
  cmake_path(ABSOLUTE_PATH kvtool_moves BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(EXISTS ${kvtool_moves})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${kvtool_moves})
  endif()
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/version.h.in ${PROJECT_BINARY_DIR}/generated/version.h @ONLY)
configure_file(${CMAKE_CURRENT_LIST_DIR}/version.cc.in ${PROJECT_BINARY_DIR}/generated/version.cc @ONLY)
