# SPDX-License-Identifier: Apache-2.0
# Run as a script: writes OUTPUT, a source file that holds every *.schema.json of FOLDER.
file(GLOB schemas ${FOLDER}/*.schema.json)
set(entries "")
foreach(schema ${schemas})
  get_filename_component(name ${schema} NAME)
  string(REPLACE .schema.json "" name ${name})
  file(READ ${schema} text)
  string(APPEND entries "    {\"${name}\", R\"schema(${text})schema\"},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"apps/kvtool/schemas.h\"\n
namespace kv {
namespace {
constexpr EmbeddedSchema kSchemas[] = {
${entries}};
}  // namespace
std::span<const EmbeddedSchema> EmbeddedSchemas() { return kSchemas; }
}  // namespace kv\n")
