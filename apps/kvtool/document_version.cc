// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/document_version.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "apps/kvtool/document_names.h"

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

// Whose documents of version 1 have no "inputs".
constexpr std::string_view kWithoutInputs[] = {"formats", "plan-check", "targets", "trace",
                                               "version"};

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

}  // namespace kv
