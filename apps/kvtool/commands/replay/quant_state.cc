// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/replay/quant_state.h"

#include <fmt/format.h>

#include "formats/key_pairs.h"
#include "formats/registry.h"
#include "lib/core/base/error.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

// Rows of a tensor as the engine keeps them.
std::vector<std::byte> Packed(const KvTensor& tensor, const LayerKv& layer, uint32_t layers,
                              const quant::CacheType& type, bool is_key,
                              const quant::StoreOptions& options) {
  const uint64_t tokens = tensor.tokens();
  const std::vector<float> values = GatherFloats(tensor, 0, tokens, Order::kTokenHeadDim);
  const quant::Side side{values, tokens,      tensor.heads, tensor.head_dim,
                         is_key, layer.index, layers,       DType::kF16};
  if (side.row() % Info(*type.dtype).block_elements != 0) {
    throw Error(Finding::kUnsupportedKind,
                fmt::format("{}: rows of {} values are no whole blocks", type.name, side.row()));
  }
  return quant::PackedRows(type, side, options);
}

// A row is one head where heads are no whole blocks: a state does not say how rows divide.
KvTensor AsRows(const std::vector<std::byte>& packed, const quant::CacheType& type,
                const KvTensor& like) {
  const auto row = static_cast<uint32_t>(like.channels());
  return ContiguousTensor(packed.data(), *type.dtype, like.tokens(), 1, row, Order::kTokenHeadDim);
}

void RequireEngineType(const quant::CacheType& type) {
  if (type.dtype && type.name == Name(*type.dtype)) return;
  throw Error(Finding::kUsage, fmt::format("--output: llama.cpp has no cache of {}", type.name))
      .Hint("f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl are its types");
}

}  // namespace

uint64_t WriteQuantState(const Snapshot& snapshot,
                         const std::function<LayerTypes(uint32_t layer)>& types_of,
                         const quant::StoreOptions& options,
                         const std::optional<ModelGeometry>& geometry, const std::string& version,
                         const std::string& path, const OutputRules& rules, ThreadPool& pool) {
  for (const LayerKv& layer : snapshot.layers) {
    RequireEngineType(*types_of(layer.index).k);
    if (layer.v) RequireEngineType(*types_of(layer.index).v);
  }
  Snapshot changed = snapshot;
  const auto layers = static_cast<uint32_t>(snapshot.layers.size());
  std::vector<std::vector<std::byte>> k_rows(layers), v_rows(layers);
  pool.ParallelFor(uint64_t{2} * layers, [&](uint64_t i) {
    const LayerKv& layer = snapshot.layers[i / 2];
    const LayerTypes types = types_of(layer.index);
    if (i % 2 == 0) {
      k_rows[i / 2] = Packed(layer.k, layer, layers, *types.k, true, options);
    } else if (layer.v) {
      v_rows[i / 2] = Packed(*layer.v, layer, layers, *types.v, false, options);
    }
  });
  for (uint32_t l = 0; l < layers; ++l) {
    LayerKv& layer = changed.layers[l];
    const LayerTypes types = types_of(layer.index);
    layer.k = AsRows(k_rows[l], *types.k, snapshot.layers[l].k);
    if (layer.v) layer.v = AsRows(v_rows[l], *types.v, *snapshot.layers[l].v);
    // Blocks cannot be transposed: such caches belong to runs with flash attention.
    if (layer.v && IsBlockQuantised(layer.v->dtype)) changed.storage.erase("v_order");
  }
  changed.storage.erase("version");
  if (!version.empty()) changed.storage["version"] = version;
  const FormatEntry& format = WritableFormat("llama-state");
  RequireKeyPairs(format.pairs, geometry, snapshot);
  format.write(changed, path, rules);

  const Snapshot written = OpenSnapshot(Source::Open(path), {});
  KV_ASSERT(written.layers.size() == layers);
  uint64_t rows = 0;
  for (uint32_t l = 0; l < layers; ++l) {
    const auto check = [&](const KvTensor& tensor, const std::vector<std::byte>& packed) {
      if (Gather(tensor, 0, tensor.tokens(), Order::kTokenHeadDim) != packed) {
        throw Error(Finding::kWriteFailed,
                    fmt::format("layer {}: what was written reads otherwise", l))
            .File(path);
      }
      rows += tensor.tokens();
    };
    check(written.layers[l].k, k_rows[l]);
    if (written.layers[l].v) check(*written.layers[l].v, v_rows[l]);
  }
  return rows;
}

}  // namespace kv
