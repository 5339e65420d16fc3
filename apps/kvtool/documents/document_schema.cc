// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/documents/document_schema.h"

#include <fmt/format.h>

#include "apps/kvtool/documents/run_document.h"
#include "lib/fields/fields.h"

namespace kv {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDialect = "https://json-schema.org/draft/2020-12/schema";

Json Text(std::string_view description) {
  return {{"description", description}, {"type", "string"}};
}
Json ErrorSchema() {
  Json schema = ToJson(ErrorFields().Schema());
  schema["additionalProperties"] = false;
  return schema;
}

std::string Id(std::string_view name, int version) {
  return fmt::format("kvtool.{}/{}", name, version);
}

Json SchemaSchema(std::string_view name, int version) {
  return {{"description", "Name and version of this schema"}, {"const", Id(name, version)}};
}

Json ToolSchema() {
  return {{"description", "What made the document"},
          {"type", "object"},
          {"required", {"name", "version", "git"}},
          {"additionalProperties", false},
          {"properties",
           {{"name", {{"description", "The program"}, {"const", "kvtool"}}},
            {"version", Text("Its version")},
            {"git", Text("The commit that it was built from")}}}};
}

Json EnvelopeProperties(std::string_view name) {
  return {{"schema", SchemaSchema(name, kJsonVersion)},
          {"tool", ToolSchema()},
          {"exit_code",
           {{"description",
             "The exit status of the run: 0 done, 1 a negative verdict, 2 wrong usage, 3 invalid "
             "input, 4 I/O, 5 recognised but unsupported, 70 a bug"},
            {"enum", {0, 1, 2, 3, 4, 5, 70}}}},
          {"errors",
           {{"description", "What failed; empty after a run without failures"},
            {"type", "array"},
            {"items", ErrorSchema()}}},
          {"warnings",
           {{"description", "Everything that the run warned of"},
            {"type", "array"},
            {"items", {{"type", "string"}}}}},
          {"results",
           {{"description",
             "One for each input, or one of all inputs where the command compares or joins them; "
             "what failed has none"},
            {"type", "array"},
            {"items", {{"$ref", "#/$defs/result"}}}}}};
}

}  // namespace

Json EnvelopeSchema(const KnownSchema& schema) {
  const std::string_view name = schema.document->name;
  Json properties = EnvelopeProperties(name);
  Json required = Json::array();
  for (const auto& [key, value] : properties.items()) required.push_back(key);
  return {{"$schema", kDialect},
          {"$id", Id(name, kJsonVersion)},
          {"title", schema.document->title},
          {"type", "object"},
          {"required", std::move(required)},
          {"additionalProperties", false},
          {"properties", std::move(properties)},
          {"$defs", {{"result", ToJson(schema.document->fields().Schema())}}}};
}

Json FileSchema(const DocumentKind& file) {
  Json schema = {{"$schema", kDialect}, {"$id", Id(file.name, 1)}, {"title", file.title}};
  schema.update(ToJson(file.fields().Schema()));
  return schema;
}

Json SummarySchema(const KnownSchema& schema) {
  const Json result = ToJson(schema.document->fields().Schema());
  Json required = {"schema", "tool"};
  Json properties = {{"schema", SchemaSchema("gate", 1)}, {"tool", ToolSchema()}};
  for (const Json& name : result["required"]) required.push_back(name);
  properties.update(result["properties"]);
  return {{"$schema", kDialect},
          {"$id", Id("gate", 1)},
          {"title", "kvtool gate: summary.json"},
          {"type", "object"},
          {"required", std::move(required)},
          {"properties", std::move(properties)}};
}

}  // namespace kv
