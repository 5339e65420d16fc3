// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "formats/format.h"

namespace kv::mnn {

// Files that the engine itself keeps on disk: prefix caches (NAME_LAYER.k, NAME_LAYER.v) and caches
// in mapped files (ADDRESS.k, ADDRESS.v). Packed memory without a header: FORMAT.md.

inline constexpr std::string_view kCachePreset = "mnn-cache";

// H kv heads, D head size, T tokens in use, hP and lP the packing, FA the flash block (none: the
// engine ran without flash attention).
bool IsCacheKey(std::string_view key);

// Opens a folder of such files. Throws kUsage if a size is missing, kSizeMismatch if the sizes of
// the files do not fit the packing.
Snapshot OpenCacheFiles(Source source, DType dtype,
                        const std::map<std::string, uint64_t, std::less<>>& sizes);

}  // namespace kv::mnn
