// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// What the key-value section of a GGUF model file says about its KV cache; see FORMAT.md. Tensors
// are not looked at. Throws Error without the file's name.
ModelGeometry ReadGgufGeometry(const FileSource& file);

}  // namespace kv
