// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The folder of a run: written under another name until it is complete, and read with checks of
// every path.
#include "apps/capture-llama/run_folder.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <regex>

#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/json.h"
#include "apps/capture-llama/tensor_file.h"

namespace kv::capture {
namespace fs = std::filesystem;
namespace {

bool IsRun(const fs::path& folder) {
  if (!fs::is_regular_file(folder / "run.json")) return false;
  try {
    const std::string text = ReadFile((folder / "run.json").string(), uint64_t{1} << 20);
    JsonReader json(text, "run.json");
    bool is_run = false;
    json.Object([&](std::string_view key) {
      if (key == "schema") {
        is_run = json.String() == "kvtool.run/1";
      } else {
        json.Skip();
      }
    });
    return is_run;
  } catch (const Failure&) {
    return false;
  }
}

// Returns a file in the folder that this program does not write, or "".
std::string Foreign(const fs::path& folder) {
  static const std::regex own(
      "run\\.json|snapshot\\.bin|prefill\\.bin|logits\\.safetensors|sensitivity\\.json|trace|"
      "trace/(trace|[qa]\\.[0-9]+)\\.safetensors");
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).generic_string();
    if (!std::regex_match(name, own)) return name;
  }
  return "";
}

Failure SystemFailure(const fs::path& path) {
  return {kIo, path.string() + ": " + std::strerror(errno)};
}

}  // namespace

RunFolder::RunFolder(const std::string& path, bool force)
    : path_(fs::absolute(path).lexically_normal()), force_(force) {
  if (!path_.has_filename()) path_ = path_.parent_path();
  RequireFree(path_.string(), force_);
  std::string made = (path_.parent_path() / ("." + path_.filename().string() + "-XXXXXX")).string();
  if (mkdtemp(made.data()) == nullptr) throw SystemFailure(path_);
  partial_ = made;
  const mode_t mask = umask(0);
  umask(mask);
  if (chmod(made.c_str(), 0777 & ~mask) != 0 || mkdir(At("trace").c_str(), 0777) != 0) {
    throw SystemFailure(path_);
  }
}

RunFolder::~RunFolder() {
  std::error_code ignored;
  if (!partial_.empty()) fs::remove_all(partial_, ignored);
}

void RunFolder::RequireFree(const std::string& path, bool force) {
  const fs::file_status status = fs::symlink_status(path);
  if (status.type() == fs::file_type::not_found) return;
  const bool is_folder = status.type() == fs::file_type::directory;
  if (is_folder && fs::is_empty(path)) return;
  if (!is_folder || !IsRun(path)) {
    throw Failure(kIo, path + ": exists and is not a recorded run; choose another name");
  }
  if (!force) throw Failure(kIo, path + ": holds a run; --force replaces it");
  if (const std::string foreign = Foreign(path); !foreign.empty()) {
    throw Failure(kIo,
                  path + ": holds " + foreign + ", which this program did not write; move it away");
  }
}

void RunFolder::Commit(const std::string& run_json) {
  WriteFile(At("run.json"), run_json);
  RequireFree(path_.string(), force_);  // another process may have created it meanwhile
  std::error_code failed;
  const fs::path replaced = partial_.string() + ".replaced";
  const bool replaces = fs::exists(path_) && !fs::is_empty(path_);
  if (replaces) fs::rename(path_, replaced, failed);
  if (!failed) fs::rename(partial_, path_, failed);  // a rename replaces an empty folder, too
  if (failed) {
    std::error_code ignored;
    if (replaces && !fs::exists(path_)) fs::rename(replaced, path_, ignored);
    throw Failure(kIo, path_.string() + ": " + failed.message());
  }
  partial_.clear();
  if (replaces) fs::remove_all(replaced, failed);
}

namespace {

constexpr int64_t kMostTokens = int64_t{1} << 30, kMostHeads = 65536;

// Resolves a path that run.json contains. Throws if it points outside the folder.
std::string Inside(const std::string& folder, const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  if (path.empty() || normal.is_absolute() || *normal.begin() == "..") {
    throw Failure(kInvalid, folder + "/run.json: '" + path + "' points outside the folder");
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

// Returns one member of an object, if it is text.
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
    throw Failure(kInvalid,
                  folder + ": has no run.json: the recording was not finished, or it is not a run");
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
