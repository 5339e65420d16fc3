// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "formats/mnn/packed.h"
#include "lib/core/base/bytes.h"

namespace kv::mnn {

// One meta_*.json or packed_meta_*.json, which describes its K and V files.
struct DumpMeta {
  bool is_packed = false;
  uint32_t layer = 0;
  uint64_t begin = 0;   // first token (logical; 0 for packed)
  uint64_t tokens = 0;  // rows in the files
  uint64_t added =
      0;  // tokens of the engine's update: more than `tokens` where the dump was capped
  uint32_t kv_heads = 0, head_dim = 0;
  DType dtype = DType::kF16;
  bool quantised_cache = false;  // the engine's own cache was quantised; the dump holds its input
  std::string stage, run_id;
  std::string k_file, v_file;  // plain names in the folder of the meta
  std::string rope_pairs;      // kvtool's own record of K's RoPE pairs; the engine writes none

  // packed only
  PackGeometry pack;
  uint64_t key_head_bytes = 0, value_head_bytes = 0;  // of one head in the files

  uint64_t end() const { return begin + tokens; }
  uint64_t k_bytes() const;  // size that the file must have
  uint64_t v_bytes() const;
};

// No meta is near this size; larger files are not looked at.
inline constexpr uint64_t kMaxMetaBytes = 64 << 10;

// Whether the bytes are a JSON object with the keys that every dump meta has.
bool LooksLikeMeta(ByteSpan bytes);

// Reads one meta strictly. Throws kBadText (not JSON, a key twice, a wrong type), kBadField,
// kInconsistent (fields that contradict each other), kSizeMismatch, kUnsafeName, kOverflow.
DumpMeta ParseMeta(ByteSpan bytes);

// The text of a logical meta, byte for byte as the engine writes it.
std::string LogicalMetaText(const DumpMeta& meta);

}  // namespace kv::mnn
