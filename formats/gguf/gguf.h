// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by gguf_reader.cc

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Reads what the key-value section of a GGUF model file says about its KV cache; see FORMAT.md.
// Tensors are not looked at. Throws Error without the file's name.
ModelGeometry ReadGgufGeometry(const FileSource& file);

}  // namespace kv
