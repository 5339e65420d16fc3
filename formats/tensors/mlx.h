// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/format.h"
#include "lib/core/base/tensor.h"

namespace kv::mlx {

// Prompt caches of mlx-lm: safetensors whose metadata name each layer's class. The reader obeys
// what a class keeps beside K and V: used length, start of a ring, padding of a batch. Grammar:
// FORMAT.md.
bool IsPromptCache(const TensorFile& file);

// Throws kUnsupportedKind for state-space layers and unknown classes, kBadField, kSizeMismatch,
// kMissingRecord.
Snapshot OpenPromptCache(TensorFile file, const OpenOptions& options);

}  // namespace kv::mlx
