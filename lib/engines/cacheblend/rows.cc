// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/cacheblend/rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"

namespace kv::blend {
namespace {

KvRows::Layer ShapeOf(const LayerKv& layer) {
  return {layer.index, layer.k.heads, layer.k.head_dim, layer.v->head_dim};
}

void RequireBoth(const LayerKv& layer) {
  if (!layer.has_k()) throw Error(Finding::kUnsupportedKind, "no K: a replay needs K and V");
  if (!layer.v || layer.v->pieces.empty()) {
    throw Error(Finding::kUnsupportedKind,
                "no V: a replay needs K and V (latent caches have one vector for both)");
  }
  if (layer.v->heads != layer.k.heads) {
    throw Error(Finding::kInconsistent,
                fmt::format("{} heads of K, {} of V", layer.k.heads, layer.v->heads));
  }
}

std::vector<KvRows::Layer> ShapesOf(const Snapshot& snapshot) {
  std::vector<KvRows::Layer> shapes;
  for (const LayerKv& layer : snapshot.layers) shapes.push_back(ShapeOf(layer));
  return shapes;
}

// Same layers, heads and dims as the first part, or refused with both.
void RequireSameShapes(const std::vector<KvRows::Layer>& first, const std::string& first_path,
                       const Snapshot& other) {
  const std::vector<KvRows::Layer> shapes = ShapesOf(other);
  if (shapes.size() != first.size()) {
    throw std::move(Error(Finding::kInconsistent, fmt::format("{} layers, {} has {}", shapes.size(),
                                                              first_path, first.size()))
                        .File(other.source.path));
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (shapes[i] == first[i]) continue;
    throw std::move(
        Error(
            Finding::kInconsistent,
            fmt::format("layer {} has {} kv heads x {} (V {}), {} has layer {} with {} x {} (V {})",
                        shapes[i].index, shapes[i].heads, shapes[i].k_dim, shapes[i].v_dim,
                        first_path, first[i].index, first[i].heads, first[i].k_dim, first[i].v_dim))
            .File(other.source.path));
  }
}

// Rows [first, first + count) where they follow one another in memory, all heads in order: most
// caches keep tokens so, and need no gathering. Null otherwise.
const std::byte* RowsInPlace(const KvTensor& tensor, uint64_t first, uint64_t count) {
  const uint64_t unit = tensor.unit_bytes(), head = tensor.units_per_head() * unit;
  for (const StridedPiece& piece : tensor.pieces) {
    if (first >= piece.tokens) {
      first -= piece.tokens;
      continue;
    }
    const bool plain = piece.token == AxisStride{tensor.row_bytes()} &&
                       (tensor.heads == 1 || piece.head == AxisStride{head}) &&
                       piece.dim == AxisStride{unit};
    return plain && first + count <= piece.tokens ? piece.data + first * tensor.row_bytes()
                                                  : nullptr;
  }
  return nullptr;
}

}  // namespace

uint64_t RowsOf(const Snapshot& snapshot) {
  try {
    if (snapshot.layers.empty()) {
      throw Error(Finding::kUnsupportedKind, "the snapshot has no attention layers");
    }
    const uint64_t rows = snapshot.layers.front().k.tokens();
    for (const LayerKv& layer : snapshot.layers) {
      try {
        RequireBoth(layer);
        if (layer.k.tokens() != rows || layer.v->tokens() != rows) {
          throw Error(
              Finding::kUnsupportedLayout,
              fmt::format("{} tokens of K and {} of V, layer {} has {}: a replay needs every "
                          "layer whole",
                          layer.k.tokens(), layer.v->tokens(), snapshot.layers.front().index,
                          rows));
        }
      } catch (Error& error) {
        throw error.In(fmt::format("layer {}", layer.index));
      }
    }
    return rows;
  } catch (Error& error) {
    throw error.File(snapshot.source.path);
  }
}

KvRows::KvRows(std::vector<Part> parts) : parts_(std::move(parts)) {
  KV_ASSERT(!parts_.empty());
  for (const Part& part : parts_) {
    KV_ASSERT(part.first_row + part.rows <= RowsOf(*part.snapshot));
    tokens_ += part.rows;
  }
  const Snapshot& first = *parts_.front().snapshot;
  layers_ = ShapesOf(first);
  for (const Part& part : parts_) RequireSameShapes(layers_, first.source.path, *part.snapshot);
}

uint64_t KvRows::bytes() const {
  uint64_t bytes = 0;
  for (const Part& part : parts_) {
    for (const LayerKv& layer : part.snapshot->layers) {
      bytes += part.rows * (layer.k.row_bytes() + layer.v->row_bytes());
    }
  }
  return bytes;
}

void KvRows::ReadHeads(size_t layer, bool is_value, uint32_t head, uint32_t heads, uint64_t begin,
                       uint64_t count, float* out) const {
  uint64_t part_begin = 0;
  Bytes raw;
  for (const Part& part : parts_) {
    const uint64_t from = std::max(begin, part_begin);
    const uint64_t to = std::min(begin + count, part_begin + part.rows);
    if (from < to) {
      const LayerKv& kv = part.snapshot->layers[layer];
      const KvTensor& tensor = is_value ? *kv.v : kv.k;
      const uint64_t values = (to - from) * heads * tensor.head_dim;
      const uint64_t row = part.first_row + from - part_begin;
      const uint64_t bytes = (to - from) * heads * tensor.units_per_head() * tensor.unit_bytes();
      const std::span<float> floats(out + (from - begin) * heads * tensor.head_dim, values);
      const std::byte* in_place =
          heads == tensor.heads ? RowsInPlace(tensor, row, to - from) : nullptr;
      if (in_place == nullptr) {
        raw.resize(bytes);
        Gather(tensor, row, to - from, head, heads, Order::kTokenHeadDim, raw);
      }
      ToFloats(tensor.dtype, {in_place != nullptr ? in_place : raw.data(), bytes}, floats);
      UndoHadamard(*part.snapshot, tensor, is_value, floats);
    }
    part_begin += part.rows;
  }
}

void KvRows::Read(size_t layer, bool is_value, uint64_t begin, uint64_t count, float* out) const {
  ReadHeads(layer, is_value, 0, layers_[layer].heads, begin, count, out);
}

void KvRows::ReadHead(size_t layer, bool is_value, uint32_t head, uint64_t begin, uint64_t count,
                      float* out) const {
  ReadHeads(layer, is_value, head, 1, begin, count, out);
}

void KvRows::Drop(size_t layer) const {
  for (const Part& part : parts_) {
    DropTensor(*part.snapshot, part.snapshot->layers[layer].k);
    DropTensor(*part.snapshot, *part.snapshot->layers[layer].v);
  }
}

}  // namespace kv::blend
