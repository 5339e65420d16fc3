// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/capture-llama/recorded_run.h"

#include <filesystem>

#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/json.h"
#include "apps/capture-llama/tensor_file.h"

namespace kv::capture {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 30, kMostHeads = 65536;

// A path of run.json, which may not leave the folder.
std::string Inside(const std::string& folder, const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  if (path.empty() || normal.is_absolute() || *normal.begin() == "..") {
    throw Failure(kInvalid, folder + "/run.json: '" + path + "' leaves the folder");
  }
  return (fs::path(folder) / normal).string();
}

void ReadGeometry(JsonReader& json, Geometry& geometry) {
  json.Object([&](std::string_view key) {
    const auto number = [&](int32_t& out) {
      out = static_cast<int32_t>(json.Integer(1, kMostHeads));
    };
    if (key == "layers") return number(geometry.layers);
    if (key == "kv_heads") return number(geometry.kv_heads);
    if (key == "query_heads") return number(geometry.query_heads);
    if (key == "head_dim") return number(geometry.head_dim);
    json.Skip();
  });
}

// The text of one member of an object, if it is text.
std::string TextMember(JsonReader& json, std::string_view wanted) {
  std::string text;
  json.Object([&](std::string_view key) {
    if (key == wanted && !json.Null()) {
      text = json.String();
    } else if (key != wanted) {
      json.Skip();
    }
  });
  return text;
}

}  // namespace

RecordedRun ReadRun(const std::string& folder) {
  const std::string path = (fs::path(folder) / "run.json").string();
  if (fs::is_directory(folder) && !fs::exists(path)) {
    throw Failure(kInvalid, folder + ": has no run.json: the run was not finished, or is none");
  }
  const std::string text = ReadFile(path, uint64_t{1} << 20);
  JsonReader json(text, path);
  RecordedRun run;
  std::string schema;
  json.Object([&](std::string_view key) {
    if (key == "schema") {
      schema = json.String();
    } else if (key == "prompt_tokens") {
      run.prompt = static_cast<int32_t>(json.Integer(1, kMostTokens));
    } else if (key == "geometry") {
      ReadGeometry(json, run.geometry);
    } else if (key == "model") {
      run.model_file = TextMember(json, "file");
    } else if (key == "files") {
      run.trace = Inside(folder, TextMember(json, "trace"));
    } else {
      json.Skip();
    }
  });
  json.End();
  if (schema != "kvtool.run/1") throw Failure(kInvalid, path + ": the schema is not kvtool.run/1");
  if (run.geometry.layers == 0 || run.geometry.kv_heads == 0 || run.trace.empty() ||
      run.prompt == 0) {
    throw Failure(kInvalid, path + ": lacks prompt_tokens, geometry or files.trace");
  }
  run.tokens = ReadIntegers((fs::path(run.trace) / "trace.safetensors").string(), "tokens");
  if (static_cast<int64_t>(run.tokens.size()) <= run.prompt) {
    throw Failure(kInvalid,
                  path + ": nothing was decoded after the prompt, so nothing can be compared");
  }
  if (static_cast<int64_t>(run.tokens.size()) > kMostTokens)
    throw Failure(kInvalid, path + ": too many tokens");
  return run;
}

}  // namespace kv::capture
