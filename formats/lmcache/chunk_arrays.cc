// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/lmcache/chunk_arrays.h"

#include <fmt/format.h>

#include "formats/raw/raw.h"
#include "lib/core/snapshot/key_rotation.h"

namespace kv::lmcache {

Snapshot SnapshotOfArrays(std::span<const GroupArray> groups, ByteSpan payload,
                          std::optional<uint64_t> batch) {
  Snapshot snapshot;
  for (size_t g = 0; g < groups.size(); ++g) {
    const GroupArray& group = groups[g];
    raw::Spec spec{.name = "the header", .dtype = group.dtype, .axes = {}};
    for (size_t i = 0; i < group.shape.size(); ++i) {
      if (group.axes[i] == 'L' && snapshot.layers.size() + group.shape[i] > raw::kMostLayers)
        throw Error(Finding::kLimit, fmt::format("{} layers", group.shape[i]));
      spec.axes.push_back({group.axes[i], group.shape[i]});
    }
    if (group.bytes > payload.size()) throw Error(Finding::kSizeMismatch, "groups past the end");
    Snapshot part = raw::MakeSnapshot({}, payload.first(group.bytes), spec, batch);
    payload = payload.subspan(group.bytes);
    const std::string name = groups.size() > 1 ? fmt::format("g{}", g) : "";
    for (LayerKv& layer : part.layers) {
      layer.index = static_cast<uint32_t>(snapshot.layers.size());
      layer.group = name;
      snapshot.layers.push_back(std::move(layer));
    }
    for (auto& [key, value] : part.facts)
      snapshot.facts.emplace_back(name.empty() ? key : key + " of " + name, std::move(value));
    snapshot.stored.insert(snapshot.stored.end(), part.stored.begin(), part.stored.end());
  }
  if (groups.size() > 1) {
    snapshot.notes.push_back({fmt::format("the layers of {} groups are numbered consecutively: the "
                                          "file does not say which layers of the model they are",
                                          groups.size()),
                              false});
  }
  snapshot.engine = "LMCache";
  AssumeRotated(snapshot, "the engines that LMCache serves cache keys after RoPE");
  return snapshot;
}

}  // namespace kv::lmcache
