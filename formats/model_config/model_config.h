// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by config_json.cc, model_rope.cc

#include <optional>

#include "lib/core/base/file.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Reads what the config.json of a Hugging Face model says about its cache: layers, heads, RoPE.
// Grammar: FORMAT.md.
bool LooksLikeConfig(ByteSpan bytes);
// Throws kBadText, kBadField, kMissingRecord, kLimit.
ModelGeometry ReadConfigGeometry(const FileSource& file);

// How the keys of the model are rotated, from its config.json or GGUF. Nothing if the file does not
// say. Throws kUnsupportedKind for M-RoPE, kBadField.
std::optional<ModelRope> ReadModelRope(const FileSource& file);

// Reads frequencies from a .npy array or a text file with one number per pair.
std::vector<double> ReadFrequencies(const std::string& path);

}  // namespace kv
