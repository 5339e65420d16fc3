// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/core/snapshot/dump_entry.h"

namespace kv {

// One packed dump: the cache in the engine's own tiles, padding included.
struct PackedEntry {
  int64_t layer = 0;
  std::string stage;
  int64_t used_tokens = 0, max_tokens = 0, heads = 0, head_dim = 0, element_bytes = 0;
  int64_t pack_h = 0, pack_l = 0, flash_block = 0, key_used_bytes = 0, value_used_bytes = 0;
  ByteSpan k, v;
};

// All dumps in a folder of an engine's dumps, one by one, whatever runs they belong to.
struct DumpEntries {
  std::vector<DumpEntry> logical;
  std::vector<PackedEntry> packed;
};

}  // namespace kv
