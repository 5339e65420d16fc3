// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string>

#include "lib/core/base/bytes.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::mnn {

// How MNN's CPU attention packs one head for its matrix kernels: K in tiles of pack_h tokens by
// pack_l dims, V in tiles of pack_h dims by pack_l tokens inside blocks of `flash_block` tokens.
//   K [ceil(tokens / pack_h)][ceil(head_dim / pack_l)][pack_h][pack_l]
//   V [ceil(tokens / flash_block)][ceil(head_dim / pack_h)][ceil(flash_block / pack_l)][pack_h]
//     [pack_l]
// Lanes past head_dim or past the last token are padding and may hold anything.
struct PackGeometry {
  uint64_t tokens = 0;
  uint64_t head_dim = 0;
  uint64_t pack_h = 0, pack_l = 0;
  uint64_t flash_block = 0;  // the whole capacity where the engine runs without flash attention
};

// Elements of one head, padding included. Throws kOverflow; once these have returned, the index
// functions cannot overflow either.
uint64_t KeyElements(const PackGeometry& geometry);
uint64_t ValueElements(const PackGeometry& geometry);

// Where element (token, dim) lies in its head. The largest index in use is that of the last token's
// last dim.
inline uint64_t KeyIndex(const PackGeometry& g, uint64_t token, uint64_t dim) {
  const uint64_t tile = g.pack_h * g.pack_l;
  const uint64_t tiles_per_group = g.head_dim / g.pack_l + (g.head_dim % g.pack_l != 0);
  return (token / g.pack_h * tiles_per_group + dim / g.pack_l) * tile +
         token % g.pack_h * g.pack_l + dim % g.pack_l;
}

inline uint64_t ValueIndex(const PackGeometry& g, uint64_t token, uint64_t dim) {
  const uint64_t tile = g.pack_h * g.pack_l;
  const uint64_t tiles_per_group = g.flash_block / g.pack_l + (g.flash_block % g.pack_l != 0);
  const uint64_t groups_per_block = g.head_dim / g.pack_h + (g.head_dim % g.pack_h != 0);
  const uint64_t in_block = token % g.flash_block;
  return ((token / g.flash_block * groups_per_block + dim / g.pack_h) * tiles_per_group +
          in_block / g.pack_l) *
             tile +
         dim % g.pack_h * g.pack_l + in_block % g.pack_l;
}

// Views of `heads` packed heads, each `head_bytes` after the one before.
KvTensor PackedKeys(const std::byte* data, DType dtype, const PackGeometry& geometry,
                    uint32_t heads, uint64_t head_bytes);
KvTensor PackedValues(const std::byte* data, DType dtype, const PackGeometry& geometry,
                      uint32_t heads, uint64_t head_bytes);

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
