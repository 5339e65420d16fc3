# SPDX-License-Identifier: Apache-2.0
# Run as a script: writes OUTPUT, a source file that holds the files SCHEMAS, which | separates. The literals state
# their length, because clang counts the characters of others one by one until it reaches a limit.
string(REPLACE "|" ";" schemas "${SCHEMAS}")
set(entries "")
foreach(schema ${schemas})
  get_filename_component(name ${schema} NAME)
  string(REPLACE .schema.json "" name ${name})
  file(READ ${schema} text)
  string(APPEND entries "    {\"${name}\", R\"schema(${text})schema\"sv},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"apps/kvtool/documents/document_names.h\"\n
#pragma GCC diagnostic ignored \"-Woverlength-strings\"
namespace kv {
namespace {
using namespace std::string_view_literals;
constexpr EmbeddedSchema kSchemas[] = {
${entries}};
}  // namespace
std::span<const EmbeddedSchema> EmbeddedSchemas() { return kSchemas; }
}  // namespace kv\n")
