// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>

#include "lib/core/base/dtype.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Returns a contiguous tensor of the given order: one piece.
KvTensor ContiguousTensor(const std::byte* data, DType dtype, uint64_t tokens, uint32_t heads,
                          uint32_t head_dim, Order order);

// Copies heads [head_begin, +heads) of tokens [token_begin, +tokens) into `out` in the given order
// (not kStorage). `out` must hold heads * tokens * units_per_head * unit_bytes.
void Gather(const KvTensor& tensor, uint64_t token_begin, uint64_t tokens, uint32_t head_begin,
            uint32_t heads, Order order, std::span<std::byte> out);
// Gathers all heads.
Bytes Gather(const KvTensor& tensor, uint64_t token_begin, uint64_t tokens, Order order);

// Returns the values of tokens as float, [token][head][dim] or [head][token][dim]; block types are
// dequantised.
std::vector<float> GatherFloats(const KvTensor& tensor, uint64_t token_begin, uint64_t tokens,
                                Order order);

// Rearranges contiguous units between two orders; the dimensions are `tokens`, `heads`, `units`.
void Reorder(ByteSpan from, Order from_order, std::span<std::byte> to, Order to_order,
             uint64_t tokens, uint64_t heads, uint64_t units, uint32_t unit_bytes);

// A range of one source file that contains only the values of one tensor piece in a known order.
// With Order::kStorage it contains elements of one type whose places in tensors are unknown.
struct Region {
  size_t file = 0;  // index into Source::files
  uint64_t offset = 0, size = 0;
  DType dtype = DType::kF16;
  Order order = Order::kTokenHeadDim;
  // The following fields are unused for kStorage.
  uint32_t layer = 0;
  bool is_value = false;
  uint64_t token_begin = 0, tokens = 0;  // in the tensor
  uint32_t heads = 0, head_dim = 0;      // heads as in KvTensor, also if heads_known is false
  bool heads_known = true;
};

// Returns the regions of a snapshot, sorted by file and offset: pieces that tile a range of a
// source file exactly, and the parts of stored ranges between them. Throws kInconsistent for
// overlaps.
std::vector<Region> FindRegions(const Snapshot& snapshot);

// Return pages to the system behind a reader that walks a tensor in token order, so that a mapped
// snapshot larger than memory needs little of it. DropTokens drops the rows [begin, begin + count)
// if rows are consecutive in the file. It has no effect on tensors whose tokens are spread over
// every page (transposed V, head-major); DropTensor drops those at the end.
void DropTokens(const Snapshot& snapshot, const KvTensor& tensor, uint64_t begin, uint64_t count);
void DropTensor(const Snapshot& snapshot, const KvTensor& tensor);

}  // namespace kv
