// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/snapshot/snapshot.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/checked.h"

namespace kv {
namespace {

void Divide(KvTensor& tensor, uint32_t kv_heads, uint32_t head_dim, const LayerKv& layer,
            char which) {
  if (tensor.heads_known) return;
  const uint64_t channels = tensor.channels();
  if (kv_heads == 0 && head_dim != 0 && channels % head_dim == 0) {
    kv_heads = static_cast<uint32_t>(channels / head_dim);
  }
  if (kv_heads == 0 || channels % kv_heads != 0 ||
      (head_dim != 0 && uint64_t{kv_heads} * head_dim != channels)) {
    throw Error(Finding::kInconsistent,
                fmt::format("rows of {} channels do not divide into {} heads of {}", channels,
                            kv_heads, head_dim == 0 ? "equal size" : std::to_string(head_dim)))
        .In(fmt::format("layer {} {}", layer.index, which));
  }
  head_dim = static_cast<uint32_t>(channels / kv_heads);
  const DTypeInfo& info = Info(tensor.dtype);
  if (head_dim % info.block_elements != 0) {
    throw Error(Finding::kInconsistent,
                fmt::format("heads of {} do not hold whole {} blocks", head_dim, info.name))
        .In(fmt::format("layer {} {}", layer.index, which));
  }
  tensor.heads = kv_heads;
  tensor.head_dim = head_dim;
  tensor.heads_known = true;
  for (StridedPiece& piece : tensor.pieces) {
    // Rows were one head; with plain strides the heads of a row follow one another along dim.
    KV_ASSERT(piece.dim.group == UINT64_MAX);
    piece.head = {piece.dim.step * tensor.units_per_head()};
  }
}

}  // namespace

uint64_t KvTensor::tokens() const {
  uint64_t total = 0;
  for (const StridedPiece& piece : pieces) total += piece.tokens;
  return total;
}

uint64_t KvTensor::units_per_head() const { return head_dim / Info(dtype).block_elements; }

uint64_t KvTensor::row_bytes() const { return uint64_t{heads} * units_per_head() * unit_bytes(); }

uint64_t KvTensor::bytes() const { return tokens() * row_bytes(); }

bool Snapshot::heads_known() const {
  return std::all_of(layers.begin(), layers.end(), [](const LayerKv& layer) {
    return layer.k.heads_known && (!layer.v || layer.v->heads_known);
  });
}

uint64_t Snapshot::kv_bytes() const {
  uint64_t total = 0;
  for (const LayerKv& layer : layers) total += layer.k.bytes() + (layer.v ? layer.v->bytes() : 0);
  return total;
}

void Snapshot::CheckContent() const {
  try {
    for (const auto& check : checks) check();
  } catch (Error& error) {
    throw error.File(source.path);
  }
}

const LayerKv* Snapshot::Find(uint32_t index) const {
  for (const LayerKv& layer : layers) {
    if (layer.index == index) return &layer;
  }
  return nullptr;
}

void ApplyGeometry(const ModelGeometry& geometry, Snapshot& snapshot) {
  std::vector<ModelGeometry::Layer> with_kv;  // files store only layers that own a cache
  for (const ModelGeometry::Layer& layer : geometry.layers) {
    if (layer.has_kv) with_kv.push_back(layer);
  }
  if (!with_kv.empty() && with_kv.size() != snapshot.layers.size()) {
    throw Error(Finding::kInconsistent,
                fmt::format("{} has {} layers with a cache, the snapshot holds {}", geometry.source,
                            with_kv.size(), snapshot.layers.size()))
        .File(snapshot.source.path);
  }
  for (size_t i = 0; i < snapshot.layers.size(); ++i) {
    LayerKv& layer = snapshot.layers[i];
    ModelGeometry::Layer shape = with_kv.empty() ? geometry.uniform : with_kv[i];
    if (geometry.uniform.kv_heads != 0) shape.kv_heads = geometry.uniform.kv_heads;
    if (geometry.uniform.k_dim != 0) shape.k_dim = geometry.uniform.k_dim;
    if (geometry.uniform.v_dim != 0) shape.v_dim = geometry.uniform.v_dim;
    if (shape.kv_heads == 0 && shape.k_dim == 0) continue;
    try {
      Divide(layer.k, shape.kv_heads, shape.k_dim, layer, 'K');
      if (layer.v) Divide(*layer.v, layer.k.heads, 0, layer, 'V');
    } catch (Error& error) {
      throw error.File(snapshot.source.path);
    }
  }
}

void RequireHeads(const Snapshot& snapshot, std::string_view what_for) {
  if (snapshot.heads_known()) return;
  throw Error(
      Finding::kGeometryMissing,
      fmt::format("{} needs the number of KV heads, which this file does not record", what_for))
      .File(snapshot.source.path)
      .Hint("give --gguf MODEL, --kv-heads H or --head-dim D");
}

}  // namespace kv
