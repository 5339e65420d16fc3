// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>

#include "lib/core/base/file.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {
// Reads what the key-value section of a GGUF model file says about its KV cache (FORMAT.md).
// Tensors are not read. Throws Error without the file's name.
ModelGeometry ReadGgufGeometry(const FileSource& file);

// Returns how the keys of a GGUF model are rotated, from its metadata and its tensors of frequency
// factors, if any. Returns nothing for architectures whose pairs are unknown. Throws like
// ReadGgufGeometry.
std::optional<ModelRope> ReadGgufRope(const FileSource& file);

}  // namespace kv
