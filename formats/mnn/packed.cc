// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/mnn/packed.h"

#include <algorithm>

#include "lib/core/base/checked.h"

namespace kv::mnn {
namespace {

uint64_t CheckedRoundUp(uint64_t value, uint64_t multiple, std::string_view what) {
  return CheckedMul(CeilDiv(value, multiple), multiple, what);
}

// A two-level stride, or the plain one it amounts to over `extent` indices.
AxisStride Tiled(uint64_t step, uint64_t group, uint64_t group_step, uint64_t extent) {
  if (group == 1) return {group_step};
  if (extent <= group || group_step == step * group) return {step};
  return {step, group, group_step};
}

}  // namespace

uint64_t KeyElements(const PackGeometry& g) {
  return CheckedMul(CheckedRoundUp(g.tokens, g.pack_h, "packed tokens"),
                    CheckedRoundUp(g.head_dim, g.pack_l, "packed head size"), "packed keys");
}

uint64_t ValueElements(const PackGeometry& g) {
  return CheckedProduct(
      {CeilDiv(g.tokens, g.flash_block), CheckedRoundUp(g.head_dim, g.pack_h, "packed head size"),
       CheckedRoundUp(g.flash_block, g.pack_l, "packed flash block")},
      "packed values");
}

KvTensor PackedKeys(const std::byte* data, DType dtype, const PackGeometry& g, uint32_t heads,
                    uint64_t head_bytes) {
  const uint64_t unit = Info(dtype).block_bytes;
  const uint64_t tile = g.pack_h * g.pack_l * unit;
  const uint64_t group = CeilDiv(g.head_dim, g.pack_l) * tile;
  KvTensor tensor{.dtype = dtype,
                  .heads = heads,
                  .head_dim = static_cast<uint32_t>(g.head_dim),
                  .heads_known = true,
                  .pieces = {}};
  tensor.pieces.push_back({data,
                           g.tokens,
                           Tiled(g.pack_l * unit, g.pack_h, group, g.tokens),
                           {head_bytes},
                           Tiled(unit, g.pack_l, tile, g.head_dim)});
  return tensor;
}

// Tokens of V have three levels (block, tile, lane): one piece per flash block leaves two.
KvTensor PackedValues(const std::byte* data, DType dtype, const PackGeometry& g, uint32_t heads,
                      uint64_t head_bytes) {
  const uint64_t unit = Info(dtype).block_bytes;
  const uint64_t tile = g.pack_h * g.pack_l * unit;
  const uint64_t group = CeilDiv(g.flash_block, g.pack_l) * tile;
  const uint64_t block = CeilDiv(g.head_dim, g.pack_h) * group;
  KvTensor tensor{.dtype = dtype,
                  .heads = heads,
                  .head_dim = static_cast<uint32_t>(g.head_dim),
                  .heads_known = true,
                  .pieces = {}};
  for (uint64_t begin = 0; begin < g.tokens; begin += g.flash_block) {
    const uint64_t tokens = std::min(g.flash_block, g.tokens - begin);
    tensor.pieces.push_back({data + begin / g.flash_block * block,
                             tokens,
                             Tiled(unit, g.pack_l, tile, tokens),
                             {head_bytes},
                             Tiled(g.pack_l * unit, g.pack_h, group, g.head_dim)});
  }
  return tensor;
}

}  // namespace kv::mnn
