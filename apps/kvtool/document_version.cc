// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/document_version.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "lib/core/base/error.h"

namespace kv {
namespace {

using Json = nlohmann::ordered_json;

struct Documented {
  std::string_view command, name;
};

constexpr Documented kDocumented[] = {
    {"advise", "advise"},
    {"analyze", "analyze"},
    {"bench", "bench"},
    {"compress", "compress"},
    {"convert", "convert"},
    {"corpus check", "corpus-check"},
    {"train", "train"},
    {"decompress", "decompress"},
    {"diff", "diff"},
    {"doctor", "doctor"},
    {"formats", "formats"},
    {"frame inspect", "frame"},
    {"gate", "gate"},
    {"inspect", "inspect"},
    {"merge", "merge"},
    {"plan check", "plan-check"},
    {"replay-blend", "blend"},
    {"replay-h2o", "h2o"},
    {"replay-lossless", "replay-lossless"},
    {"replay-mlp", "replay-mlp"},
    {"replay-quant", "quant"},
    {"replay-quant --against", "quant-origin"},
    {"store add", "store-add"},
    {"store gc", "store-gc"},
    {"store get", "store-get"},
    {"store list", "store-list"},
    {"store prune", "store-prune"},
    {"store stats", "store-stats"},
    {"store verify", "store-verify"},
    {"targets", "targets"},
    {"trace inspect", "trace"},
    {"verify", "verify"},
    {"weights convert", "weights-convert"},
    {"weights diff", "weights-diff"},
    {"weights inspect", "weights-inspect"},
    {"weights verify", "weights-verify"},
    {"--version", "version"},
    {"", "failure"},
};

// What version 2 names otherwise. A path goes through arrays as if they were not there.
struct Renamed {
  std::string_view document, path, name, description;
  bool was_seconds = false;  // whole microseconds now
};

constexpr Renamed kRenamed[] = {
    // Fractions below 1, where a ratio is original / what is left everywhere else.
    {"blend", "selection/ratio", "recomputed_fraction", "Share of the tokens that is recomputed"},
    {"blend", "curve/ratio", "recomputed_fraction", "Share of the tokens that is recomputed"},
    {"blend", "controller/ratio", "recomputed_fraction",
     "Share of the tokens that the controller recomputes"},
    {"blend", "controller/ratio_hide", "hidden_fraction",
     "Share of the tokens whose recomputation the loading of a layer hides"},
    {"h2o", "runs/layers/keep_ratio", "kept_fraction", "Share of the tokens that stays"},
    {"replay-mlp", "quality/norm_ratios", "relative_norms",
     "Norm of what the step makes, divided by the norm of what it was made of, by layer"},
    // Durations are in microseconds.
    {"replay-lossless", "attention_only_speed/seconds", "elapsed_us",
     "Wall time of the measured decoding, in microseconds", true},
    {"replay-lossless", "attention_only_speed/attention_seconds", "attention_us",
     "Time of that in attention alone, in microseconds", true},
};

// Words that a program compares: in version 2 their spaces are underscores.
struct Words {
  std::string_view document, path;
};

constexpr Words kWords[] = {
    {"advise", "loss/unit"},
    {"advise", "check/left_out"},
    {"blend", "model/rope/scaling"},
    {"h2o", "trace/level"},
    {"h2o", "trace/format"},
    {"replay-lossless", "trace/level"},
    {"trace", "level"},
    {"replay-lossless", "trace/format"},
    {"trace", "format"},
};

// Whose documents of version 1 have no "inputs".
constexpr std::string_view kWithoutInputs[] = {"formats", "plan-check", "targets", "trace",
                                               "version"};

std::string WithUnderscores(std::string text) {
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
}

std::string NameOf(const Json& made) {
  const std::string schema = made["schema"];
  return schema.substr(schema.find('.') + 1, schema.find('/') - schema.find('.') - 1);
}

bool LacksInputs(std::string_view name) {
  return std::find(std::begin(kWithoutInputs), std::end(kWithoutInputs), name) !=
         std::end(kWithoutInputs);
}

// Calls with each object that holds the last name of `path`, and that name.
void ForEachAt(Json& value, std::string_view path,
               const std::function<void(Json& object, const std::string& name)>& call) {
  if (value.is_array()) {
    for (Json& element : value) ForEachAt(element, path, call);
    return;
  }
  const size_t slash = path.find('/');
  const std::string name(path.substr(0, slash));
  if (!value.is_object() || !value.contains(name)) return;
  if (slash == path.npos) return call(value, name);
  ForEachAt(value[name], path.substr(slash + 1), call);
}

// In the place of the old one, so that what is read together stands together.
void RenameKey(Json& object, const std::function<std::string(const std::string&)>& renamed) {
  Json with = Json::object();
  for (auto& [key, value] : object.items()) with[renamed(key)] = std::move(value);
  object = std::move(with);
}

void RenameKey(Json& object, const std::string& was, std::string_view now) {
  RenameKey(object, [&](const std::string& key) { return key == was ? std::string(now) : key; });
}

void ApplyTables(std::string_view name, Json& result) {
  for (const Renamed& renamed : kRenamed) {
    if (renamed.document != name) continue;
    ForEachAt(result, renamed.path, [&](Json& object, const std::string& key) {
      Json& value = object[key];
      if (renamed.was_seconds && value.is_number()) {
        value = static_cast<int64_t>(std::llround(value.get<double>() * 1e6));
      }
      RenameKey(object, key, renamed.name);
    });
  }
  for (const Words& words : kWords) {
    if (words.document != name) continue;
    ForEachAt(result, words.path, [](Json& object, const std::string& key) {
      if (object[key].is_string()) object[key] = WithUnderscores(object[key]);
    });
  }
}

// "rotated (assumed: vLLM caches keys after RoPE)": the word, and what it is assumed from.
void SplitKeyRotation(Json& result) {
  if (!result.contains("key_rotation")) return;
  const std::string text = result["key_rotation"];
  constexpr std::string_view kAssumed = " (assumed: ";
  const size_t from = text.find(kAssumed);
  result["key_rotation"] = text.substr(0, text.find(' '));
  if (from == text.npos) return;
  const size_t begin = from + kAssumed.size();
  result["key_rotation_assumed"] = text.substr(begin, text.size() - begin - 1);
}

// "TensorRT-LLM (KvCacheConfig)": the engine, and which of its configurations takes the parameters.
void SplitEngine(Json& settings) {
  const std::string text = settings["engine"];
  const size_t from = text.find(" (");
  settings["engine"] = text.substr(0, from);
  settings["configuration"] =
      from == text.npos ? Json() : Json(text.substr(from + 2, text.size() - from - 3));
}

// Where the original has no value it writes a ratio of 0.
void RemoveZeroRatios(Json& value) {
  if (value.is_array()) {
    for (Json& element : value) RemoveZeroRatios(element);
  }
  if (!value.is_object()) return;
  for (auto& [key, child] : value.items()) {
    if (key.ends_with("ratio") && child.is_number() && child.get<double>() == 0) child = nullptr;
    RemoveZeroRatios(child);
  }
}

void ApplyExceptions(std::string_view name, Json& result) {
  if (name == "inspect") {
    SplitKeyRotation(result);
    if (result.contains("facts")) RenameKey(result["facts"], WithUnderscores);
  }
  if (name == "advise" && result.contains("engines")) {
    for (Json& settings : result["engines"]) SplitEngine(settings);
  }
  if (name == "analyze") RemoveZeroRatios(result);
}

}  // namespace

std::string_view DocumentName(std::string_view command) {
  for (const Documented& documented : kDocumented) {
    if (documented.command == command) return documented.name;
  }
  return {};
}

bool HasEnvelope(std::string_view name) {
  return std::any_of(std::begin(kDocumented), std::end(kDocumented),
                     [&](const Documented& documented) { return documented.name == name; });
}

Json FirstVersion(Json made) {
  if (made.is_array()) {
    for (Json& one : made) one = FirstVersion(std::move(one));
    if (made.size() == 1) return Json(made[0]);
    return made;
  }
  if (LacksInputs(NameOf(made))) made.erase("inputs");
  if (NameOf(made) == "advise") made.erase("savings");  // came after the first version
  return made;
}

Json ResultOf(Json made) {
  const std::string name = NameOf(made);
  Json result = {{"inputs", made.contains("inputs") ? made["inputs"] : Json::array()}};
  made.erase("schema");
  made.erase("tool");
  made.erase("inputs");
  for (auto& [key, value] : made.items()) result[key] = std::move(value);
  ApplyTables(name, result);
  ApplyExceptions(name, result);
  return result;
}

namespace {

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
