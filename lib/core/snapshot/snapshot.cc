// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/snapshot.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/bytes.h"
#include "lib/core/base/number.h"

namespace kv {

namespace {

// Divides a row of `tensor` into heads; 0 means unknown, and one argument gives the other.
void Divide(KvTensor& tensor, uint32_t heads, uint32_t head_dim) {
  if (tensor.heads_known || (heads == 0 && head_dim == 0)) return;
  const uint64_t channels = tensor.channels();
  const DTypeInfo& info = Info(tensor.dtype);
  const std::string wanted = heads == 0      ? fmt::format("heads of {}", head_dim)
                             : head_dim == 0 ? fmt::format("{} heads", heads)
                                             : fmt::format("{} heads of {}", heads, head_dim);
  if (heads == 0) heads = static_cast<uint32_t>(channels / head_dim);
  if (head_dim == 0) head_dim = static_cast<uint32_t>(channels / heads);
  if (heads == 0 || uint64_t{heads} * head_dim != channels) {
    throw Error(Finding::kInconsistent, "rows of {} channels are not {}", channels, wanted);
  }
  if (head_dim % info.block_elements != 0) {
    throw Error(Finding::kInconsistent, "heads of {} do not hold whole {} blocks", head_dim,
                info.name);
  }
  tensor.heads = heads;
  tensor.head_dim = head_dim;
  tensor.heads_known = true;
  for (StridedPiece& piece : tensor.pieces) {
    // A row was one head; with plain strides its heads are consecutive along dim.
    KV_ASSERT(piece.dim.group == UINT64_MAX);
    piece.head = {piece.dim.step * tensor.units_per_head()};
  }
}

void DivideLayer(const ModelGeometry::Layer& shape, LayerKv& layer) {
  const std::string_view name = layer.label;
  const auto in = [&](char which) {
    return name.empty() ? fmt::format("layer {} {}", layer.index, which)
                        : fmt::format("layer {} ({}) {}", layer.index, name, which);
  };
  const bool is_latent = shape.latent_dim != 0 && layer.k.channels() == shape.latent_dim;
  try {
    if (is_latent) {
      Divide(layer.k, 1, shape.latent_dim);
    } else {
      Divide(layer.k, shape.kv_heads, shape.k_dim);
    }
  } catch (Error& error) {
    throw error.In(in('K'));
  }
  if (!layer.v || !layer.k.heads_known) return;
  try {
    // K and V of a layer have the same number of heads; only their sizes may differ.
    Divide(*layer.v, layer.k.heads, is_latent ? 0 : shape.v_dim);
  } catch (Error& error) {
    throw error.In(in('V'));
  }
}

// The model's layers that own a cache, in the order in which the snapshot stores them.
struct StoredLayers {
  std::vector<ModelGeometry::Layer> shapes;
  std::vector<size_t> numbers;  // layers' numbers in the model; empty if the order is uncertain
};

bool SameShape(const ModelGeometry::Layer& a, const ModelGeometry::Layer& b) {
  return a.kv_heads == b.kv_heads && a.k_dim == b.k_dim && a.v_dim == b.v_dim &&
         a.latent_dim == b.latent_dim;
}

StoredLayers InStoredOrder(const ModelGeometry& geometry, const Snapshot& snapshot) {
  StoredLayers stored;
  for (size_t i = 0; i < geometry.layers.size(); ++i) {
    if (geometry.layers[i].has_kv) stored.numbers.push_back(i);
  }
  const auto is_swa = [](const LayerKv& layer) { return layer.group == "swa"; };
  const auto swa = std::count_if(snapshot.layers.begin(), snapshot.layers.end(), is_swa);
  if (swa != 0) {
    const auto first_swa =
        std::stable_partition(stored.numbers.begin(), stored.numbers.end(),
                              [&](size_t i) { return !geometry.layers[i].sliding; });
    const bool fits = stored.numbers.end() - first_swa == swa;
    for (size_t i : stored.numbers) stored.shapes.push_back(geometry.layers[i]);
    if (fits || stored.shapes.empty()) return stored;
    // The window pattern comes from the architecture; if all layers are alike it does not matter.
    const auto& first = stored.shapes[0];
    const auto differs = [&](const auto& shape) { return !SameShape(shape, first); };
    if (std::any_of(stored.shapes.begin(), stored.shapes.end(), differs)) {
      throw Error(Finding::kInconsistent,
                  "{} has {} layers with a sliding window, the snapshot holds {}", geometry.source,
                  stored.numbers.end() - first_swa, swa);
    }
    stored.numbers.clear();
    return stored;
  }
  for (size_t i : stored.numbers) stored.shapes.push_back(geometry.layers[i]);
  return stored;
}

}  // namespace

uint32_t ModelNumber(const LayerKv& layer) {
  constexpr std::string_view kLabel = "blk.";
  const std::string_view label = layer.label;
  if (!label.starts_with(kLabel)) return layer.index;
  return ParseNumber<uint32_t>(label.substr(kLabel.size())).value_or(layer.index);
}

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

std::string ShapeText(const Snapshot& snapshot, const std::string& model) {
  const std::string& name = model.empty() ? snapshot.model : model;
  std::string text = name.empty() ? "" : fmt::format("model {}, ", name);
  if (snapshot.layers.empty()) return text + "no attention layers";
  const LayerKv& first = snapshot.layers.front();
  const KvTensor& k = first.k;
  text += fmt::format("{} layers of {} kv heads x {} in {}", snapshot.layers.size(), k.heads,
                      k.head_dim, Name(k.dtype));
  if (first.v && first.v->dtype != k.dtype) text += fmt::format(" and {}", Name(first.v->dtype));
  return text + fmt::format(", {} tokens", k.tokens());
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
  const StoredLayers stored = InStoredOrder(geometry, snapshot);
  const bool per_layer = !stored.shapes.empty();
  if (per_layer && stored.shapes.size() != snapshot.layers.size()) {
    throw Error(Finding::kInconsistent, "{} has {} layers with a cache, the snapshot holds {}",
                geometry.source, stored.shapes.size(), snapshot.layers.size());
  }
  for (size_t i = 0; i < snapshot.layers.size(); ++i) {
    LayerKv& layer = snapshot.layers[i];
    ModelGeometry::Layer shape = geometry.uniform;
    if (per_layer) {
      // Options override the model file.
      shape = stored.shapes[i];
      if (geometry.uniform.kv_heads != 0) shape.kv_heads = geometry.uniform.kv_heads;
      if (geometry.uniform.k_dim != 0) shape.k_dim = geometry.uniform.k_dim;
      if (geometry.uniform.v_dim != 0) shape.v_dim = geometry.uniform.v_dim;
      if (layer.label.empty() && !stored.numbers.empty())
        layer.label = fmt::format("blk.{}", stored.numbers[i]);
    }
    DivideLayer(shape, layer);
  }
}

void RequireHeads(const Snapshot& snapshot, std::string_view what_for) {
  if (snapshot.heads_known()) return;
  throw Error(Finding::kGeometryMissing,
              "{} needs the number of KV heads, which this file does not record", what_for)
      .File(snapshot.source.path)
      .Hint("give --model MODEL, --kv-heads H or --head-dim D");
}

uint64_t BatchRows(const Snapshot& snapshot) {
  const auto at = snapshot.storage.find(kBatchRows);
  if (at == snapshot.storage.end()) return 1;
  const std::string& text = at->second;
  const uint64_t rows = ParseNumber<uint64_t>(text).value_or(0);
  bool divides = rows > 0;
  for (const LayerKv& layer : snapshot.layers)
    divides =
        divides && layer.k.tokens() % rows == 0 && (!layer.v || layer.v->tokens() % rows == 0);
  if (!divides) throw Error(Finding::kBadField, "a batch of '{}' rows", Escaped(text, 40));
  return rows;
}

}  // namespace kv
