// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/dump_entry.h"

namespace kv {

std::vector<DumpEntry> ListDumpEntries(const Snapshot& snapshot) {
  std::vector<DumpEntry> entries;
  for (const LayerKv& layer : snapshot.layers) {
    DumpEntry& entry = entries.emplace_back();
    entry.place = snapshot.source.path;
    entry.stage = "prefill";
    entry.layer = layer.index;
    entry.model_layer = ModelNumber(layer);
    const KvTensor& shape = layer.has_k() || !layer.v ? layer.k : *layer.v;
    entry.tokens = static_cast<int64_t>(shape.tokens());
    entry.heads = shape.heads;
    entry.head_dim = shape.head_dim;
    entry.element_bytes = shape.unit_bytes();
    const bool both = layer.has_k() && layer.v && !layer.v->pieces.empty();
    // MNN's script assumes the same shape for K and V.
    if (!both) {
      entry.defect = DumpDefect::kNoFiles;
    } else if (layer.k.heads != layer.v->heads || layer.k.head_dim != layer.v->head_dim ||
               layer.k.tokens() != layer.v->tokens()) {
      entry.defect = DumpDefect::kWrongSize;
    } else {
      entry.k = layer.k;
      entry.v = *layer.v;
    }
  }
  return entries;
}

}  // namespace kv
