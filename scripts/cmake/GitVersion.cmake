# SPDX-License-Identifier: Apache-2.0
# KVTOOL_GIT: the commit this tree was configured from, or "unknown" outside a checkout.
execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} rev-parse --short=10 HEAD
                OUTPUT_VARIABLE KVTOOL_GIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT KVTOOL_GIT)
  set(KVTOOL_GIT unknown)
endif()
configure_file(${PROJECT_SOURCE_DIR}/scripts/cmake/version.h.in
               ${PROJECT_BINARY_DIR}/generated/version.h @ONLY)
