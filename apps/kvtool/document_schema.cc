// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/document_schema.h"

#include <fmt/format.h>

#include <functional>

#include "apps/kvtool/document_names.h"
#include "lib/core/base/error.h"

namespace kv {

namespace {

using Json = nlohmann::ordered_json;

// Where a reference leads within `root`.
Json& Resolved(Json& root, Json& schema) {
  Json* at = &schema;
  while (at->contains("$ref")) {
    const std::string to = (*at)["$ref"];
    at = &root.at(Json::json_pointer(to.substr(1)));
  }
  return *at;
}

// Calls with the schema of each object that has the last name of `path`, and that name.
bool ForEachSchemaAt(Json& root, Json& from, std::string_view path,
                     const std::function<void(Json& object, const std::string& name)>& call) {
  Json& schema = Resolved(root, from);
  if (schema.contains("items")) return ForEachSchemaAt(root, schema["items"], path, call);
  bool found = false;
  for (const char* choice : {"anyOf", "oneOf"}) {
    if (!schema.contains(choice)) continue;
    for (Json& one : schema[choice]) found |= ForEachSchemaAt(root, one, path, call);
  }
  const size_t slash = path.find('/');
  const std::string name(path.substr(0, slash));
  if (!schema.contains("properties") || !schema["properties"].contains(name)) return found;
  if (slash != path.npos) {
    return ForEachSchemaAt(root, schema["properties"][name], path.substr(slash + 1), call);
  }
  call(schema, name);
  return true;
}

void RequireFound(bool found, std::string_view document, std::string_view path) {
  if (found) return;
  throw Error(Finding::kInternal, fmt::format("schema {} has no {}", document, path));
}

void RenameInSchema(Json& schema, const std::string& was, const Renamed& renamed) {
  RenameKey(schema["properties"], was, renamed.name);
  Json& property = schema["properties"][std::string(renamed.name)];
  if (renamed.was_seconds) property = {{"type", "integer"}, {"minimum", 0}};
  property["description"] = renamed.description;
  if (!schema.contains("required")) return;
  for (Json& name : schema["required"]) {
    if (name == was) name = renamed.name;
  }
}

void ApplyTablesToSchema(std::string_view document, Json& schema) {
  for (const Renamed& renamed : kRenamed) {
    if (renamed.document != document) continue;
    RequireFound(ForEachSchemaAt(schema, schema, renamed.path,
                                 [&](Json& object, const std::string& name) {
                                   RenameInSchema(object, name, renamed);
                                 }),
                 document, renamed.path);
  }
  for (const Words& words : kWords) {
    if (words.document != document) continue;
    RequireFound(ForEachSchemaAt(schema, schema, words.path,
                                 [&](Json& object, const std::string& name) {
                                   Json& word = Resolved(schema, object["properties"][name]);
                                   if (!word.contains("enum")) return;
                                   for (Json& one : word["enum"]) {
                                     if (one.is_string()) one = WithUnderscores(one);
                                   }
                                 }),
                 document, words.path);
  }
}

void ApplyExceptionsToSchema(std::string_view document, Json& schema) {
  Json& properties = schema["properties"];
  if (document == "inspect") {
    properties["key_rotation"] = {{"description", "Whether RoPE has been applied to the keys"},
                                  {"enum", {"rotated", "unrotated", "unknown"}}};
    properties["key_rotation_assumed"] = {
        {"description", "Why they are taken for rotated, where the file does not say"},
        {"type", "string"}};
  }
  if (document == "advise") {
    Json& settings = Resolved(schema, properties["engines"]["items"]);
    settings["properties"]["configuration"] = {
        {"description", "Which of the engine's configurations takes the parameters; null: its own"},
        {"type", {"string", "null"}}};
    settings["required"].push_back("configuration");
  }
  if (!properties.contains("inputs")) {
    properties["inputs"] = {
        {"description", "What was read"},
        {"type", "array"},
        {"items",
         {{"type", "object"},
          {"required", {"file"}},
          {"properties",
           {{"file", {{"description", "Its name as it was given"}, {"type", "string"}}},
            {"role", {{"description", "What it is to the command"}, {"type", "string"}}}}}}}};
  }
}

// What was the document is a definition now.
void MoveReferences(Json& value) {
  constexpr std::string_view kTop = "#/properties/";
  if (value.is_array()) {
    for (Json& element : value) MoveReferences(element);
  }
  if (!value.is_object()) return;
  for (auto& [key, child] : value.items()) {
    if (key == "$ref" && child.get<std::string>().starts_with(kTop)) {
      child = "#/$defs/result/properties/" + child.get<std::string>().substr(kTop.size());
    } else {
      MoveReferences(child);
    }
  }
}

Json Text(std::string_view description) {
  return {{"description", description}, {"type", "string"}};
}
Json TextOrNull(std::string_view description) {
  return {{"description", description}, {"type", {"string", "null"}}};
}

Json ErrorSchema() {
  return {
      {"type", "object"},
      {"required",
       {"finding", "exit_code", "file", "context", "message", "offset", "hint", "text"}},
      {"additionalProperties", false},
      {"properties",
       {{"finding",
         {{"description", "Its number; 'kvtool explain KV1001' documents it"},
          {"type", "string"},
          {"pattern", "^KV[0-9]{4}$"}}},
        {"exit_code",
         {{"description", "The exit status that this failure alone would give"},
          {"type", "integer"}}},
        {"file", TextOrNull("The file in which it is")},
        {"context", TextOrNull("The part of the file, as \"layer 3 K\"")},
        {"message", Text("What is wrong")},
        {"offset",
         {{"description", "Where in the file, in bytes from its beginning"},
          {"type", {"integer", "null"}},
          {"minimum", 0}}},
        {"hint", TextOrNull("What to do about it")},
        {"text", Text("The whole line as standard error has it, without the program's name")}}}};
}

Json EnvelopeProperties(std::string_view name) {
  return {{"schema",
           {{"description", "Name and version of this schema"},
            {"const", fmt::format("kvtool.{}/2", name)}}},
          {"tool",
           {{"description", "What made the document"},
            {"type", "object"},
            {"required", {"name", "version", "git"}},
            {"additionalProperties", false},
            {"properties",
             {{"name", {{"description", "The program"}, {"const", "kvtool"}}},
              {"version", Text("Its version")},
              {"git", Text("The commit that it was built from")}}}}},
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

Json EnvelopeSchema(std::string_view name, std::string_view first_version) {
  Json result = Json::parse(first_version);
  ApplyTablesToSchema(name, result);
  ApplyExceptionsToSchema(name, result);
  MoveReferences(result);
  const std::string title = result.value("title", "");
  Json definitions = result.value("$defs", Json::object());
  for (const char* only_outside : {"$schema", "$id", "title", "$defs"}) result.erase(only_outside);
  result["properties"].erase("schema");
  result["properties"].erase("tool");
  Json required = {"inputs"};
  for (const Json& key : result["required"]) {
    if (key != "schema" && key != "tool" && key != "inputs") required.push_back(key);
  }
  result["required"] = std::move(required);
  definitions["result"] = std::move(result);
  Json properties = EnvelopeProperties(name);
  Json all = Json::array();
  for (const auto& [key, value] : properties.items()) all.push_back(key);
  return {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
          {"$id", fmt::format("kvtool.{}/2", name)},
          {"title", title.substr(0, title.find(';'))},
          {"type", "object"},
          {"required", std::move(all)},
          {"additionalProperties", false},
          {"properties", std::move(properties)},
          {"$defs", std::move(definitions)}};
}

}  // namespace kv
