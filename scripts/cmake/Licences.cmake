# SPDX-License-Identifier: Apache-2.0
# Writes the licences of everything that a program may contain, with the versions found: `kvtool --version --licenses`
# prints the text, packages install it as their copyright file, and scripts/release/sbom.py reads the names from it.
file(STRINGS ${KVTOOL_BLAS_INCLUDE}/openblas_config.h openblas_version REGEX "OPENBLAS_VERSION")
string(REGEX MATCH "[0-9]+(\\.[0-9]+)+" openblas_version "${openblas_version}")
configure_file(${PROJECT_SOURCE_DIR}/scripts/release/packaging/copyright.in ${PROJECT_BINARY_DIR}/generated/copyright @ONLY)
file(READ ${PROJECT_BINARY_DIR}/generated/copyright parts)
file(READ ${PROJECT_SOURCE_DIR}/LICENSE own)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/LICENSE)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/licences.cc @ONLY CONTENT "#include \"apps/kvtool/line/help.h\"\n
namespace kv {
std::string_view Licences() {
  return R\"licences(${parts}
${own})licences\";
}
}  // namespace kv\n")
