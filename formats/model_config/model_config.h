// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>

#include "lib/core/base/file.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// What the config.json of a model of Hugging Face says of its cache: layers, heads, RoPE. Grammar:
// FORMAT.md.
bool LooksLikeConfig(ByteSpan bytes);
// Throws kBadText, kBadField, kMissingRecord, kLimit.
ModelGeometry ReadConfigGeometry(const FileSource& file);

// How keys of the model are rotated, from its config.json or GGUF. Nothing where the file does not
// say. Throws kUnsupportedKind for M-RoPE, kBadField.
std::optional<blend::ModelRope> ReadModelRope(const std::string& path);

// Frequencies of a file: a .npy array of one number per pair, or text with as many numbers.
std::vector<double> ReadFrequencies(const std::string& path);

}  // namespace kv
