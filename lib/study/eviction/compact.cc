// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "lib/core/base/error.h"
#include "lib/core/base/hash.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/select.h"
#include "lib/study/eviction/replay.h"

namespace kv::eviction {
namespace {

const LayerPlan* FindPlan(const ReplayRun& run, uint32_t layer) {
  for (const LayerPlan& plan : run.plans) {
    if (plan.layer == layer && !plan.events.empty()) return &plan;
  }
  return nullptr;
}

// Returns whole tokens as pieces of the source.
KvTensor SliceRanges(const KvTensor& tensor, const KeepPlan& kept) {
  KvTensor out = tensor;
  out.pieces.clear();
  for (const KeepRange& range : kept) {
    const KvTensor part = SliceTokens(tensor, range.begin, range.count);
    out.pieces.insert(out.pieces.end(), part.pieces.begin(), part.pieces.end());
  }
  return out;
}

// Returns one head's kept rows, packed [token][dim].
Bytes GatherRanges(const KvTensor& tensor, const KeepPlan& kept, uint32_t head) {
  const uint64_t row = tensor.units_per_head() * tensor.unit_bytes();
  Bytes out(KeptTokens(kept) * row);
  uint64_t at = 0;
  for (const KeepRange& range : kept) {
    Gather(tensor, range.begin, range.count, head, 1, Order::kHeadTokenDim,
           std::span(out).subspan(at, range.count * row));
    at += range.count * row;
  }
  return out;
}

// Copies a tensor whose heads keep different tokens: [head][token][dim].
KvTensor CopyHeads(const KvTensor& tensor, const LayerPlan& plan, uint64_t tokens,
                   std::vector<std::shared_ptr<const FileSource>>& spools) {
  Bytes all;
  uint64_t kept = 0;
  for (uint32_t head = 0; head < tensor.heads; ++head) {
    const KeepPlan held = plan.HeldBefore(head, tokens);
    kept = KeptTokens(held);
    const Bytes rows = GatherRanges(tensor, held, head);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  const auto storage = FileSource::FromBytes(std::move(all), "compacted rows");
  spools.push_back(storage);
  return ContiguousTensor(storage->bytes().data(), tensor.dtype, kept, tensor.heads,
                          tensor.head_dim, Order::kHeadTokenDim);
}

CellGroup BuildCells(const KeepPlan& held, const std::string& group) {
  CellGroup cells;
  cells.group = group;
  for (const uint32_t position : ListTokens(held)) cells.cells.push_back({position, 0, {0}});
  return cells;
}

uint64_t CompareTensor(const KvTensor& source, const LayerPlan* plan, const KvTensor& written,
                       std::string_view name) {
  for (uint32_t head = 0; head < source.heads; ++head) {
    KeepPlan held{{0, static_cast<uint32_t>(source.tokens())}};
    if (plan != nullptr) held = plan->HeldBefore(plan->units == 1 ? 0 : head, source.tokens());
    const uint64_t row = source.units_per_head() * source.unit_bytes();
    Bytes theirs(written.tokens() * row);
    const bool same_shape = written.heads == source.heads && written.head_dim == source.head_dim &&
                            written.dtype == source.dtype && written.tokens() == KeptTokens(held);
    if (same_shape) {
      Gather(written, 0, written.tokens(), head, 1, Order::kHeadTokenDim, theirs);
    }
    if (!same_shape || Hash64(GatherRanges(source, held, head)) != Hash64(theirs)) {
      throw Error(Finding::kContentDiffers, "{} of head {}: the rows written are not the rows kept",
                  name, head);
    }
  }
  return written.tokens() * source.heads;
}

}  // namespace

Snapshot Compacted(const Snapshot& snapshot, const ReplayRun& run) {
  Snapshot out = snapshot;
  out.cell_groups.clear();
  for (LayerKv& layer : out.layers) {
    const uint64_t tokens = layer.k.tokens();
    layer.group = fmt::format("layer {}", layer.index);
    const LayerPlan* plan = FindPlan(run, layer.index);
    KeepPlan held{{0, static_cast<uint32_t>(tokens)}};
    if (plan != nullptr && plan->units == 1) {
      held = plan->HeldBefore(0, tokens);
      layer.k = SliceRanges(layer.k, held);
      if (layer.v) layer.v = SliceRanges(*layer.v, held);
    } else if (plan != nullptr) {
      layer.k = CopyHeads(layer.k, *plan, tokens, out.spools);
      if (layer.v) layer.v = CopyHeads(*layer.v, *plan, tokens, out.spools);
      continue;  // heads keep different positions, so no common cells are recorded
    }
    out.cell_groups.push_back(BuildCells(held, layer.group));
  }
  // The list of prompt tokens no longer matches the rows.
  out.tokens.clear();
  return out;
}

uint64_t CheckRows(const Snapshot& source, const ReplayRun& run, const Snapshot& written) {
  uint64_t rows = 0;
  for (const LayerKv& layer : source.layers) {
    const LayerKv* other = written.Find(layer.index);
    try {
      if (other == nullptr || layer.v.has_value() != other->v.has_value()) {
        throw Error(Finding::kContentDiffers, "the written snapshot lacks it");
      }
      const LayerPlan* plan = FindPlan(run, layer.index);
      rows += CompareTensor(layer.k, plan, other->k, "K");
      if (layer.v) rows += CompareTensor(*layer.v, plan, *other->v, "V");
    } catch (Error& error) {
      throw error.In(fmt::format("layer {}", layer.index)).File(written.source.path);
    }
  }
  return rows;
}

}  // namespace kv::eviction
