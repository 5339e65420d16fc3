// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string>

namespace kv {

// Size of a file, or of all files in a folder; 0 for what is not there.
uint64_t BytesOf(const std::string& path);

// XXH3 of an input's content, 16 hex digits: of a file that of its bytes, of a folder that of the
// names, sizes and bytes of all files below it. Throws as Source::Open does.
std::string ContentHash(const std::string& path);

}  // namespace kv
