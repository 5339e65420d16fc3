// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads run.json and sensitivity.json of recorded runs.
#include "formats/run/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "formats/json_fields.h"
#include "lib/core/base/error.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr uint64_t kMostTokens = uint64_t{1} << 31, kMostLayers = 65536, kMostHeads = 65536;
constexpr uint64_t kMostDim = 1 << 20, kMostContext = uint64_t{1} << 40;
constexpr double kMostBase = 1e15, kMostFactor = 1e9, kMostNll = 1e6;

bool IsFile(const fs::path& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed);
}

// Returns true if a capture program has worked in this folder: it writes queries first, and
// run.json at the end.
bool LooksUnfinished(const fs::path& folder) {
  std::error_code failed;
  for (fs::directory_iterator entry(folder / "trace", failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    if (name == "trace.safetensors" || (name.starts_with("q.") && name.ends_with(".safetensors")))
      return true;
  }
  return false;
}

uint32_t SmallCount(const json& object, const char* key, uint64_t most) {
  return static_cast<uint32_t>(CountField(object, key, most).value_or(0));
}

// Returns the path of a file that run.json names; "" if it names none.
std::string ResolvePath(const fs::path& folder, const json& files, const char* key) {
  const std::string name = TextField(files, key);
  if (name.empty()) return {};
  const auto refuse = [&](Finding finding, std::string_view why) {
    return Error(finding, fmt::format("'{}' is '{}', {}", key, Escaped(name, 80), why));
  };
  if (!IsSafeRelativePath(name)) throw refuse(Finding::kUnsafeName, "which is outside the folder");
  std::error_code failed;
  const fs::path real = fs::canonical(folder / name, failed);
  if (failed) throw refuse(Finding::kMissingRecord, "which does not exist");
  const fs::path inside = fs::canonical(folder, failed);
  const auto [at, rest] = std::mismatch(inside.begin(), inside.end(), real.begin(), real.end());
  if (failed || at != inside.end() || rest == real.end()) {
    throw refuse(Finding::kUnsafeName, "a link to outside the folder");
  }
  return (folder / name).string();
}

// Returns a scaling in the syntax of --rope-scaling, from transformers' parameters or llama.cpp's;
// nothing if the flag cannot express it.
std::optional<std::string> ScalingWord(const json& rope) {
  const json scaling = ObjectField(rope, "scaling");
  if (scaling.empty()) return "none";
  const auto real = [&](const char* key) { return RealField(scaling, key, 0, kMostFactor); };
  std::string kind = TextField(scaling, "rope_type");
  if (kind.empty()) kind = TextField(scaling, "type");
  const auto factor = real("factor");
  if (kind == "linear" && factor) return fmt::format("linear:{}", *factor);
  if (kind == "llama3" && factor) {
    const auto low = real("low_freq_factor"), high = real("high_freq_factor");
    const auto original = real("original_max_position_embeddings");
    if (low && high && original) {
      return fmt::format("llama3:{},{},{},{}", *factor, *low, *high, *original);
    }
  }
  const auto shrink = real("frequency_scale");
  const bool is_linear = shrink && *shrink > 0 && real("extrapolation") == 0.0 &&
                         real("attention") == 1.0 && !scaling.contains("factors");
  if (kind.empty() && is_linear) return fmt::format("linear:{}", 1 / *shrink);
  return std::nullopt;
}

void ReadRope(const json& document, RecordedRun::Rope& rope) {
  const json told = ObjectField(document, "rope");
  const std::string style = TextField(told, "style");
  const auto base = RealField(told, "base", 1e-3, kMostBase);
  const auto scaling = ScalingWord(told);
  const bool has_words = style == "half" || style == "neighbour";
  if (!base || !has_words || !scaling || told.contains("local_base")) return;
  rope = {style == "half" ? "neox" : "gptj", *scaling, *base, SmallCount(told, "dims", kMostDim)};
}

RecordedRun BuildRun(const std::string& path, const json& document) {
  RecordedRun made;
  made.folder = path;
  const json engine = ObjectField(document, "engine");
  made.engine = TextField(engine, "name");
  made.build = TextField(engine, "build");
  const json model = ObjectField(document, "model");
  made.model = TextField(model, "name");
  made.architecture = TextField(model, "architecture");
  made.context_length = CountField(model, "context_length", kMostContext).value_or(0);
  made.tokens = CountField(document, "tokens", kMostTokens).value_or(0);
  made.prompt_tokens = CountField(document, "prompt_tokens", kMostTokens).value_or(0);
  if (made.tokens == 0 || made.prompt_tokens > made.tokens) {
    throw Error(Finding::kBadField, "{} tokens with a prompt of {}", made.tokens,
                made.prompt_tokens);
  }
  made.nll = RealField(document, "nll", 0, kMostNll);
  const json geometry = ObjectField(document, "geometry");
  made.layers = SmallCount(geometry, "layers", kMostLayers);
  made.query_heads = SmallCount(geometry, "query_heads", kMostHeads);
  made.kv_heads = SmallCount(geometry, "kv_heads", kMostHeads);
  made.head_dim = SmallCount(geometry, "head_dim", kMostDim);
  ReadRope(document, made.rope);
  const json files = ObjectField(document, "files");
  for (const auto& [key, place] : {std::pair{"snapshot", &made.snapshot},
                                   {"prefill", &made.prefill},
                                   {"trace", &made.trace},
                                   {"logits", &made.logits},
                                   {"sensitivity", &made.sensitivity}}) {
    *place = ResolvePath(path, files, key);
  }
  if (made.snapshot.empty()) throw Error(Finding::kMissingRecord, "names no snapshot");
  return made;
}

}  // namespace

std::optional<RecordedRun> OpenRun(const std::string& path) {
  std::error_code failed;
  if (path == "-" || !fs::is_directory(path, failed)) return std::nullopt;
  const fs::path index = fs::path(path) / "run.json";
  if (!IsFile(index)) {
    if (!LooksUnfinished(path)) return std::nullopt;
    throw Error(Finding::kMissingRecord,
                "a recorded run without run.json: its recording has not finished")
        .File(path)
        .Hint(
            "wait for it, or record again; what is in trace/ can be read by "
            "'kvtool trace inspect'");
  }
  return ReadRun(*FileSource::OpenSmall(index, kLargestDocument, "a run.json"), path);
}

RecordedRun ReadRun(const FileSource& index, const std::string& folder) {
  const json document = ReadDocument(index, "kvtool.run/1");
  try {
    return BuildRun(folder, document);
  } catch (Error& error) {
    throw error.File(index.name());
  }
}

namespace {

constexpr uint64_t kMostLayerNumber = 65535;
constexpr double kLeastNoise = 1e-6, kMostNoise = 1e3, kMostNats = 1e6;

Sensitivity ParseSensitivity(const nlohmann::json& document) {
  Sensitivity made;
  made.model = TextField(document, "model");
  const auto noise = RealField(document, "noise", kLeastNoise, kMostNoise);
  if (!noise) throw Error(Finding::kBadField, "'noise' is missing");
  made.noise = *noise;
  const auto layers = document.find("layers");
  if (layers == document.end() || !layers->is_array() || layers->empty()) {
    throw Error(Finding::kBadField, "'layers' is not a list of layers");
  }
  for (const nlohmann::json& layer : *layers) {
    if (!layer.is_object()) throw Error(Finding::kBadField, "a 'layers' entry is not an object");
    const auto number = CountField(layer, "layer", kMostLayerNumber);
    const auto kl = RealField(layer, "kl", 0, kMostNats);
    if (!number || !kl) {
      throw Error(Finding::kBadField, "an entry of 'layers' has no 'layer' or no 'kl'");
    }
    if (!made.kl.emplace(static_cast<uint32_t>(*number), *kl).second) {
      throw Error(Finding::kDuplicateName, "a second entry for layer {}", *number);
    }
  }
  return made;
}

}  // namespace

std::map<uint32_t, double> Sensitivity::Weights() const {
  std::map<uint32_t, double> weights = kl;
  for (auto& [layer, weight] : weights) weight /= noise * noise;
  return weights;
}

Sensitivity ReadSensitivity(const FileSource& file) {
  const nlohmann::json document = ReadDocument(file, "kvtool.sensitivity/1");
  try {
    return ParseSensitivity(document);
  } catch (Error& error) {
    throw error.File(file.name());
  }
}

Sensitivity ReadSensitivity(const std::string& path) {
  return ReadSensitivity(*FileSource::OpenSmall(path, kLargestDocument, "a sensitivity.json"));
}

}  // namespace kv
