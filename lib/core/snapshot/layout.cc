// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/layout.h"

#include <algorithm>
#include <cstring>

#include "lib/core/base/bytes.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/kernels/reorder.h"

namespace kv {

namespace {

struct UnitStrides {
  uint64_t token, head, unit;  // in bytes
};

UnitStrides ComputeStrides(Order order, uint64_t tokens, uint64_t heads, uint64_t units,
                           uint64_t unit_bytes) {
  switch (order) {
    case Order::kTokenHeadDim:
      return {heads * units * unit_bytes, units * unit_bytes, unit_bytes};
    case Order::kHeadTokenDim:
      return {units * unit_bytes, tokens * units * unit_bytes, unit_bytes};
    case Order::kHeadDimToken:
      return {unit_bytes, units * tokens * unit_bytes, tokens * unit_bytes};
    case Order::kStorage:
      break;
  }
  AssertionFailed("order has strides", __FILE__, __LINE__);
}

// Returns the end of the run, from index `at` on and below `end`, in which the axis has a plain
// stride.
uint64_t EvenRunEnd(const AxisStride& axis, uint64_t at, uint64_t end) {
  return axis.group == UINT64_MAX ? end : std::min(end, (at / axis.group + 1) * axis.group);
}

// Gathers tokens [begin, begin + count) of one piece. Two-level strides are walked tile by tile,
// each tile a plain grid.
void GatherPiece(const KvTensor& tensor, const StridedPiece& piece, uint64_t begin, uint64_t count,
                 uint32_t head_begin, uint32_t heads, const UnitStrides& to, std::byte* out) {
  const uint64_t units = tensor.units_per_head(), end = begin + count;
  for (uint32_t h = 0; h < heads; ++h) {
    const std::byte* from_head = piece.data + piece.head.Offset(head_begin + h);
    std::byte* to_head = out + h * to.head;
    for (uint64_t t = begin, next_t; t < end; t = next_t) {
      next_t = EvenRunEnd(piece.token, t, end);
      for (uint64_t d = 0, next_d; d < units; d = next_d) {
        next_d = EvenRunEnd(piece.dim, d, units);
        CopyStrided2D(from_head + piece.token.Offset(t) + piece.dim.Offset(d), piece.token.step,
                      piece.dim.step, to_head + (t - begin) * to.token + d * to.unit, to.token,
                      to.unit, next_t - t, next_d - d, tensor.unit_bytes());
      }
    }
  }
}

// Returns the order of a piece that fills its range without gaps, or kStorage.
Order FindPieceOrder(const KvTensor& tensor, const StridedPiece& piece) {
  for (const Order order : {Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kHeadDimToken}) {
    const UnitStrides wanted = ComputeStrides(order, piece.tokens, tensor.heads,
                                              tensor.units_per_head(), tensor.unit_bytes());
    const auto fits = [](const AxisStride& axis, uint64_t step, uint64_t extent) {
      return extent <= 1 || (axis.group == UINT64_MAX && axis.step == step);
    };
    if (fits(piece.token, wanted.token, piece.tokens) &&
        fits(piece.head, wanted.head, tensor.heads) &&
        fits(piece.dim, wanted.unit, tensor.units_per_head())) {
      return order;
    }
  }
  return Order::kStorage;
}

size_t IndexOf(const Snapshot& snapshot, const SourceFile& file) {
  return static_cast<size_t>(&file - snapshot.source.files.data());
}

bool IsBefore(const Region& a, const Region& b) {
  return a.file != b.file ? a.file < b.file : a.offset < b.offset;
}

void AddPieces(const Snapshot& snapshot, const LayerKv& layer, const KvTensor& tensor,
               bool is_value, std::vector<Region>& regions) {
  uint64_t token_begin = 0;
  for (const StridedPiece& piece : tensor.pieces) {
    const Order order = FindPieceOrder(tensor, piece);
    const SourceFile* file = snapshot.source.FindFile(piece.data);
    if (order != Order::kStorage && file != nullptr && piece.tokens > 0) {
      regions.push_back({.file = IndexOf(snapshot, *file),
                         .offset = file->data->OffsetOf(piece.data),
                         .size = piece.tokens * tensor.row_bytes(),
                         .dtype = tensor.dtype,
                         .order = order,
                         .layer = layer.index,
                         .is_value = is_value,
                         .token_begin = token_begin,
                         .tokens = piece.tokens,
                         .heads = tensor.heads,
                         .head_dim = tensor.head_dim,
                         .heads_known = tensor.heads_known});
    }
    token_begin += piece.tokens;
  }
}

// Adds the parts of stored ranges that lie between the existing regions, which are sorted.
void AddStored(const Snapshot& snapshot, std::vector<Region>& regions) {
  std::vector<Region> between;
  for (const StoredRange& stored : snapshot.stored) {
    const SourceFile* file = snapshot.source.FindFile(stored.data);
    if (file == nullptr) continue;
    Region region{.file = IndexOf(snapshot, *file),
                  .offset = file->data->OffsetOf(stored.data),
                  .dtype = stored.dtype,
                  .order = Order::kStorage};
    const uint64_t end = region.offset + stored.bytes;
    auto next = std::lower_bound(regions.begin(), regions.end(), region, IsBefore);
    if (next != regions.begin() && std::prev(next)->file == region.file) --next;
    const auto add_until = [&](uint64_t limit) {
      // Elements are counted from the start of the range. A region that is not a whole number of
      // elements is left out.
      region.size = limit > region.offset ? limit - region.offset : 0;
      if (region.size > 0 && region.size % Info(region.dtype).block_bytes == 0) {
        between.push_back(region);
      }
    };
    for (; next != regions.end() && next->file == region.file && next->offset < end; ++next) {
      add_until(next->offset);
      region.offset = std::max(region.offset, next->offset + next->size);
    }
    add_until(end);
  }
  regions.insert(regions.end(), between.begin(), between.end());
}

void ExpectDisjoint(const Snapshot& snapshot, const std::vector<Region>& regions) {
  for (size_t i = 1; i < regions.size(); ++i) {
    const Region& a = regions[i - 1];
    const Region& b = regions[i];
    if (a.file == b.file && a.offset + a.size > b.offset) {
      throw Error(Finding::kInconsistent, "{} of layer {} and {} of layer {} share bytes",
                  a.is_value ? 'V' : 'K', a.layer, b.is_value ? 'V' : 'K', b.layer)
          .At(b.offset)
          .File(snapshot.source.path);
    }
  }
}

}  // namespace

KvTensor ContiguousTensor(const std::byte* data, DType dtype, uint64_t tokens, uint32_t heads,
                          uint32_t head_dim, Order order) {
  KvTensor tensor{
      .dtype = dtype, .heads = heads, .head_dim = head_dim, .heads_known = true, .pieces = {}};
  const UnitStrides strides =
      ComputeStrides(order, tokens, heads, tensor.units_per_head(), tensor.unit_bytes());
  tensor.pieces.push_back({data, tokens, {strides.token}, {strides.head}, {strides.unit}});
  return tensor;
}

void Gather(const KvTensor& tensor, uint64_t token_begin, uint64_t tokens, uint32_t head_begin,
            uint32_t heads, Order order, std::span<std::byte> out) {
  const uint64_t units = tensor.units_per_head();
  KV_ASSERT(out.size() >= heads * tokens * units * tensor.unit_bytes());
  KV_ASSERT(token_begin + tokens <= tensor.tokens() && head_begin + heads <= tensor.heads);
  const UnitStrides to = ComputeStrides(order, tokens, heads, units, tensor.unit_bytes());
  uint64_t piece_begin = 0;
  for (const StridedPiece& piece : tensor.pieces) {
    const uint64_t begin = std::max(piece_begin, token_begin);
    const uint64_t end = std::min(piece_begin + piece.tokens, token_begin + tokens);
    if (begin < end) {
      GatherPiece(tensor, piece, begin - piece_begin, end - begin, head_begin, heads, to,
                  out.data() + (begin - token_begin) * to.token);
    }
    piece_begin += piece.tokens;
  }
}

Bytes Gather(const KvTensor& tensor, uint64_t token_begin, uint64_t tokens, Order order) {
  Bytes out(CheckedMul(tokens, tensor.row_bytes(), "gathered rows"));
  Gather(tensor, token_begin, tokens, 0, tensor.heads, order, out);
  return out;
}

std::vector<float> GatherFloats(const KvTensor& tensor, uint64_t token_begin, uint64_t tokens,
                                Order order) {
  // Blocks run along dim and must stay whole: gathers rows, then widens each unit.
  KV_ASSERT(order == Order::kTokenHeadDim || order == Order::kHeadTokenDim);
  const Bytes raw = Gather(tensor, token_begin, tokens, order);
  std::vector<float> out(CheckedMul(tokens, tensor.channels(), "gathered values"));
  ToFloats(tensor.dtype, raw, out);
  return out;
}

void Reorder(ByteSpan from, Order from_order, std::span<std::byte> to, Order to_order,
             uint64_t tokens, uint64_t heads, uint64_t units, uint32_t unit_bytes) {
  KV_ASSERT(from.size() == tokens * heads * units * unit_bytes && to.size() == from.size());
  if (from.empty()) return;  // an empty span may have a null address
  if (from_order == to_order) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  const UnitStrides a = ComputeStrides(from_order, tokens, heads, units, unit_bytes);
  const UnitStrides b = ComputeStrides(to_order, tokens, heads, units, unit_bytes);
  for (uint64_t h = 0; h < heads; ++h) {
    CopyStrided2D(from.data() + h * a.head, a.token, a.unit, to.data() + h * b.head, b.token,
                  b.unit, tokens, units, unit_bytes);
  }
}

std::vector<Region> FindRegions(const Snapshot& snapshot) {
  std::vector<Region> regions;
  for (const LayerKv& layer : snapshot.layers) {
    AddPieces(snapshot, layer, layer.k, false, regions);
    if (layer.v) AddPieces(snapshot, layer, *layer.v, true, regions);
  }
  std::sort(regions.begin(), regions.end(), IsBefore);
  ExpectDisjoint(snapshot, regions);
  if (snapshot.stored.empty()) return regions;
  AddStored(snapshot, regions);
  std::sort(regions.begin(), regions.end(), IsBefore);
  ExpectDisjoint(snapshot, regions);
  return regions;
}

namespace {

const FileSource* FindHolder(const Snapshot& snapshot, const std::byte* p) {
  if (const SourceFile* file = snapshot.source.FindFile(p)) return file->data.get();
  for (const auto& spool : snapshot.spools) {
    if (spool->Contains(p)) return spool.get();
  }
  return nullptr;
}

// Drops all pages from the first to the last byte of a run of tokens, and anything in between.
void DropRange(const Snapshot& snapshot, const KvTensor& tensor, const StridedPiece& piece,
               uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  const FileSource* file = FindHolder(snapshot, piece.data);
  if (file == nullptr) return;
  const uint64_t last = piece.token.Offset(end - 1) + piece.head.Offset(tensor.heads - 1) +
                        piece.dim.Offset(tensor.units_per_head() - 1) + tensor.unit_bytes();
  const uint64_t first = piece.token.Offset(begin);
  file->Drop(file->OffsetOf(piece.data) + first, last - first);
}

}  // namespace

void DropTokens(const Snapshot& snapshot, const KvTensor& tensor, uint64_t begin, uint64_t count) {
  uint64_t piece_begin = 0;
  for (const StridedPiece& piece : tensor.pieces) {
    const bool rows = piece.token.step >= piece.head.step * (tensor.heads - 1) &&
                      piece.token.step >= piece.dim.step && piece.token.group == UINT64_MAX;
    const uint64_t from = std::max(begin, piece_begin),
                   to = std::min(begin + count, piece_begin + piece.tokens);
    if (rows && from < to) {
      DropRange(snapshot, tensor, piece, from - piece_begin, to - piece_begin);
    }
    piece_begin += piece.tokens;
  }
}

void DropTensor(const Snapshot& snapshot, const KvTensor& tensor) {
  for (const StridedPiece& piece : tensor.pieces)
    DropRange(snapshot, tensor, piece, 0, piece.tokens);
}

}  // namespace kv
