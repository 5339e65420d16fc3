// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/part.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace kv {
namespace {

const LayerKv& LayerOf(const Archive& archive, const ArchivePart& part) {
  return archive.description()->layers.at(part.layer);
}

bool IsOf(const ChunkHead& head, uint32_t layer, bool is_value) {
  return head.layer == layer && head.kind == (is_value ? ChunkKind::kValue : ChunkKind::kKey);
}

bool FitsTensor(const ChunkHead& head, const KvTensor& tensor) {
  return head.dtype == tensor.dtype && head.token_begin <= tensor.tokens() &&
         head.tokens <= tensor.tokens() - head.token_begin &&
         uint64_t{head.head_begin} + head.heads <= tensor.heads &&
         uint64_t{head.unit_begin} + head.units <= tensor.units_per_head();
}

}  // namespace

std::vector<ArchivePart> PartsOf(const Archive& archive) {
  std::vector<ArchivePart> parts;
  if (!archive.description()) return parts;
  std::set<uint32_t> numbers;
  const std::vector<LayerKv>& layers = archive.description()->layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!numbers.insert(layers[i].index).second) {
      throw Error(Finding::kDuplicateName, "two layers have the same number");
    }
    if (archive.HoldsTensor(i, false)) parts.push_back({i, false});
    if (layers[i].v && archive.HoldsTensor(i, true)) parts.push_back({i, true});
  }
  return parts;
}

const KvTensor& TensorOf(const Archive& archive, const ArchivePart& part) {
  const LayerKv& layer = LayerOf(archive, part);
  return part.is_value ? *layer.v : layer.k;
}

std::vector<uint64_t> StoredBytes(const Archive& archive, std::span<const ArchivePart> parts) {
  // One walk over the chunks: an archive may name very many of both.
  std::map<std::pair<uint32_t, bool>, uint64_t> of_tensor;
  for (const ArchivedChunk& chunk : archive.chunks()) {
    if (chunk.head.kind == ChunkKind::kOpaque) continue;
    of_tensor[{chunk.head.layer, chunk.head.kind == ChunkKind::kValue}] += chunk.payload_bytes;
  }
  std::vector<uint64_t> bytes;
  for (const ArchivePart& part : parts) {
    bytes.push_back(of_tensor[{LayerOf(archive, part).index, part.is_value}]);
  }
  return bytes;
}

std::vector<const ArchivedChunk*> ChunksOf(const Archive& archive, const ArchivePart& part,
                                           uint64_t begin, uint64_t count) {
  const KvTensor& tensor = TensorOf(archive, part);
  const LayerKv& layer = LayerOf(archive, part);
  std::vector<const ArchivedChunk*> chunks;
  uint64_t covered = 0;
  for (const ArchivedChunk& chunk : archive.chunks()) {
    const ChunkHead& head = chunk.head;
    if (!IsOf(head, layer.index, part.is_value)) continue;
    if (!FitsTensor(head, tensor)) {
      throw Error(Finding::kInconsistent, "the chunk does not fit the layer as described")
          .In(Describe(head));
    }
    const uint64_t from = std::max(begin, head.token_begin),
                   to = std::min(begin + count, head.token_begin + head.tokens);
    if (from >= to) continue;
    covered += (to - from) * head.heads * head.units * head.unit_bytes;
    chunks.push_back(&chunk);
  }
  if (covered != count * tensor.row_bytes()) {
    throw Error(Finding::kLostChunk, "chunks of these tokens are lost")
        .In(fmt::format("layer {} {}", layer.index, part.is_value ? 'V' : 'K'));
  }
  return chunks;
}

void CopyTokens(const ChunkHead& head, ByteSpan raw, const KvTensor& tensor, uint64_t begin,
                uint64_t count, std::span<std::byte> out) {
  const uint64_t from = std::max(begin, head.token_begin),
                 to = std::min(begin + count, head.token_begin + head.tokens);
  const uint64_t piece = uint64_t{head.units} * head.unit_bytes;  // of one head of one token
  const uint64_t head_bytes = tensor.units_per_head() * tensor.unit_bytes();
  const bool by_head = head.order == Order::kHeadTokenDim;
  for (uint64_t token = from; token < to; ++token) {
    const uint64_t at = token - head.token_begin;
    std::byte* row = out.data() + (token - begin) * tensor.row_bytes() +
                     uint64_t{head.unit_begin} * head.unit_bytes;
    for (uint64_t h = 0; h < head.heads; ++h) {
      const uint64_t place = by_head ? h * head.tokens + at : at * head.heads + h;
      std::copy_n(raw.data() + place * piece, piece, row + (head.head_begin + h) * head_bytes);
    }
  }
}

}  // namespace kv
