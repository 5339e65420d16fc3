// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/values.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "lib/core/snapshot/layout.h"

namespace kv {

SpoolFile::~SpoolFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::shared_ptr<const FileSource> SpoolFile::Release(std::string name) {
  return FileSource::FromDescriptor(std::exchange(descriptor_, -1), std::move(name));
}

void WriteRows(const Snapshot& snapshot, const KvTensor& tensor, uint64_t begin, uint64_t count,
               Sink& sink) {
  // Large enough that gathering a transposed tensor touches whole pages of each of its rows.
  constexpr uint64_t kGatherBytes = 8 << 20;
  const uint64_t step = std::max<uint64_t>(1, kGatherBytes / tensor.row_bytes());
  for (uint64_t at = begin; at < begin + count; at += step) {
    const uint64_t part = std::min(step, begin + count - at);
    sink.Write(Gather(tensor, at, part, Order::kTokenHeadDim));
    DropTokens(snapshot, tensor, at, part);
  }
  DropTensor(snapshot, tensor);
}

void RequireLayerNumbers(const Snapshot& snapshot) {
  std::set<uint32_t> indices;
  for (const LayerKv& layer : snapshot.layers) {
    if (indices.insert(layer.index).second) continue;
    throw Error(Finding::kUnsupportedLayout, "two layers have the index {}", layer.index);
  }
}

void AddLayerNumbers(const Snapshot& snapshot, std::vector<std::string>& lost) {
  for (size_t i = 0; i < snapshot.layers.size(); ++i) {
    if (snapshot.layers[i].index == i) continue;
    lost.emplace_back("layer numbers: stored layers are counted from 0");
    return;
  }
}

}  // namespace kv
