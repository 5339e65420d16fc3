// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/advise/run_of.h"

#include <fmt/format.h>

#include "lib/core/base/error.h"
#include "lib/core/snapshot/cast.h"

namespace kv::advise {
uint64_t TokenBytes(const LayerKv& layer) {
  return layer.k.row_bytes() + (layer.v ? layer.v->row_bytes() : 0);
}

RunOf::RunOf(std::string name, const Snapshot& snapshot, const AttentionTrace& trace,
             uint64_t prompt, ThreadPool& pool)
    : name_(std::move(name)),
      snapshot_(snapshot),
      values_(WithoutHadamard(snapshot, pool)),
      trace_(trace),
      prompt_(prompt) {
  for (const LayerKv& layer : values_.layers) {
    const TraceLayer* rows = trace.Find(layer.index);
    if (rows != nullptr) layers_.emplace_back(trace, *rows, layer);
  }
}

std::vector<uint32_t> RunOf::missing_layers() const {
  std::vector<uint32_t> missing;
  for (const LayerKv& layer : snapshot_.layers) {
    if (trace_.Find(layer.index) == nullptr) missing.push_back(layer.index);
  }
  return missing;
}

uint64_t RunOf::bytes_per_token() const {
  uint64_t bytes = 0;
  for (const LayerKv& layer : snapshot_.layers)
    bytes += TokenBytes(layer) * TokensSeen(trace_, layer.index, end() - 1);
  return bytes / end();
}

double RunOf::head_bytes_per_token(size_t i) const {
  const LayerKv& layer = *snapshot_.Find(layers_[i].layer());
  return static_cast<double>(TokenBytes(layer)) / layer.k.heads;
}

eviction::LayerPlace RunOf::PlaceOf(size_t i) const {
  eviction::LayerPlace place{true, 0, static_cast<uint32_t>(snapshot_.layers.size())};
  while (snapshot_.layers[place.index].index != layers_[i].layer()) ++place.index;
  return place;
}

void RequireLike(const RunOf& run, const RunOf& first) {
  bool same = run.layers().size() == first.layers().size();
  for (size_t i = 0; same && i < first.layers().size(); ++i) {
    const LayerAttention &a = run.layers()[i], &b = first.layers()[i];
    same = a.layer() == b.layer() && a.kv_heads() == b.kv_heads() &&
           a.query_heads() == b.query_heads() && a.head_dim() == b.head_dim();
  }
  if (same && run.snapshot().layers.size() == first.snapshot().layers.size()) return;
  throw Error(Finding::kTraceMismatch,
              fmt::format("its layers and heads are not those of {}: advice is for one model",
                          first.name()))
      .File(run.name());
}

}  // namespace kv::advise
