// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>

#include "lib/core/base/file.h"
#include "lib/core/snapshot/rope.h"

namespace kv {

// How the keys of a GGUF model are rotated: its metadata, and its tensors of frequency factors
// where it has any. Nothing for architectures whose pairs are not known. Throws as the geometry.
std::optional<blend::ModelRope> ReadGgufRope(const FileSource& file);

}  // namespace kv
