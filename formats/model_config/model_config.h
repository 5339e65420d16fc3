// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/base/file.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::model_config {
// A config.json whose fields are checked when they are read. Models of text and images keep the
// text model's fields in a nested object.
class Config {
 public:
  explicit Config(ByteSpan bytes);

  const nlohmann::json& text() const { return text_; }
  std::string Word(const char* key) const;
  // Throws kBadField unless the value is a whole number up to `most`. Returns nothing if it is
  // absent or null.
  std::optional<uint32_t> Count(const char* key, uint32_t most) const;
  uint32_t Need(const char* key, uint32_t most) const;
  uint32_t head_dim() const;
  uint32_t layers() const;
  // Returns for each layer whether it has a sliding window.
  std::vector<bool> Sliding() const;

 private:
  nlohmann::json text_;
};

std::optional<double> Real(const nlohmann::json& object, const char* key);
ModelRope FindRope(const Config& config);

}  // namespace kv::model_config

namespace kv {
// Reads what the config.json of a Hugging Face model says about its cache: layers, heads, RoPE.
// Grammar: FORMAT.md.
bool LooksLikeConfig(ByteSpan bytes);
// Throws kBadText, kBadField, kMissingRecord, kLimit.
ModelGeometry ReadConfigGeometry(const FileSource& file);

// Returns how the keys of the model are rotated, from its config.json or GGUF. Returns nothing if
// the file does not say. Throws kUnsupportedKind for M-RoPE, kBadField.
std::optional<ModelRope> ReadModelRope(const FileSource& file);

// Reads frequencies from a .npy array or a text file with one number per pair.
std::vector<double> ReadFrequencies(const std::string& path);

}  // namespace kv
