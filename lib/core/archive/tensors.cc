// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Loads tensors of an archive as a snapshot, decoded into an unnamed temporary file.
#include <fmt/format.h>
#include <unistd.h>

#include <map>

#include "lib/core/archive/archive.h"
#include "lib/core/archive/records.h"
#include "lib/core/base/arena.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/spool_file.h"

namespace kv {
namespace {

using namespace kvz;

// Buffers kept from chunk to chunk, leased as in the writer.
struct DecoderScratch {
  CodecScratch codec;
  Bytes raw, scratch;
};

// The place of one layer's K or V in the temporary file. It is ordered by token, or by head if
// chunks hold single heads, so that each chunk is written in a few long pieces.
struct Place {
  uint64_t offset = 0;
  KvTensor* tensor = nullptr;
  Order order = Order::kTokenHeadDim;
  uint64_t covered = 0;  // bytes covered by chunks

  uint64_t head_row() const { return tensor->units_per_head() * tensor->unit_bytes(); }
};

using PlaceKey = std::pair<uint32_t, bool>;  // layer number, is value

// Writes a decoded chunk to its place.
void WriteChunk(const ChunkHead& head, const Place& place, Bytes& raw, Bytes& scratch,
                const SpoolFile& spool) {
  const uint64_t units = head.units, tokens = head.tokens, heads = head.heads;
  const uint64_t head_row = place.head_row(), part = units * head.unit_bytes;
  const Order coded = head.heads == 1 ? place.order : head.order;
  const Bytes* from = &raw;
  if (coded != place.order) {
    scratch.resize(raw.size());
    Reorder(raw, coded, scratch, place.order, tokens, heads, units, head.unit_bytes);
    from = &scratch;
  }
  const uint64_t row_step =
      place.order == Order::kTokenHeadDim ? head_row * place.tensor->heads : head_row;
  const uint64_t head_step =
      place.order == Order::kTokenHeadDim ? head_row : head_row * place.tensor->tokens();
  const uint64_t begin = place.offset + head.token_begin * row_step + head.head_begin * head_step +
                         uint64_t{head.unit_begin} * head.unit_bytes;
  const ByteSpan bytes = *from;
  // In token order a row has all heads of the chunk.
  const uint64_t runs = place.order == Order::kTokenHeadDim ? 1 : heads,
                 width = part * heads / runs;
  for (uint64_t h = 0; h < runs; ++h) {
    const ByteSpan run = bytes.subspan(h * tokens * width, tokens * width);
    const uint64_t to = begin + h * head_step;
    if (width == row_step) {
      spool.WriteAt(to, run);
      continue;
    }
    for (uint64_t t = 0; t < tokens; ++t)
      spool.WriteAt(to + t * row_step, run.subspan(t * width, width));
  }
}

void CheckFits(const ChunkHead& head, const Place& place) {
  const KvTensor& tensor = *place.tensor;
  const bool fits = head.dtype == tensor.dtype &&
                    head.token_begin + head.tokens <= tensor.tokens() &&
                    uint64_t{head.head_begin} + head.heads <= tensor.heads &&
                    uint64_t{head.unit_begin} + head.units <= tensor.units_per_head();
  if (fits) return;
  throw Error(Finding::kInconsistent, "the chunk does not fit the layer as described")
      .In(Describe(head));
}

std::string Label(const PlaceKey& key) {
  return fmt::format("layer {} {}", key.first, key.second ? 'V' : 'K');
}

// Assigns every wanted tensor a place; the others have no bytes.
uint64_t PlaceTensors(Snapshot& snapshot, const Selection& wanted,
                      std::map<PlaceKey, Place>& places) {
  uint64_t size = 0;
  const auto add = [&](LayerKv& layer, KvTensor& tensor, bool is_value) {
    const PlaceKey key{layer.index, is_value};
    Place place{.offset = size, .tensor = &tensor};
    if (!places.emplace(key, place).second) {
      throw Error(Finding::kDuplicateName, "two layers have the same number").In(Label(key));
    }
    size = CheckedAdd(size, RoundUp(tensor.bytes(), 64), "tensors");
  };
  for (LayerKv& layer : snapshot.layers) {
    if (!wanted.HasLayer(layer.index)) continue;
    if (wanted.keys) add(layer, layer.k, false);
    if (wanted.values && layer.v) add(layer, *layer.v, true);
  }
  return size;
}

// Returns the chunks with wanted tokens. Throws if the chunks do not cover a whole place.
std::vector<const ArchivedChunk*> ListChunks(const Archive& archive, const Selection& wanted,
                                             std::map<PlaceKey, Place>& places) {
  std::vector<const ArchivedChunk*> chunks;
  for (const ArchivedChunk& chunk : archive.chunks()) {
    const ChunkHead& head = chunk.head;
    if (head.kind == ChunkKind::kOpaque) continue;
    const auto at = places.find({head.layer, head.kind == ChunkKind::kValue});
    if (at == places.end()) continue;
    CheckFits(head, at->second);
    at->second.covered += head.raw_bytes;
    if (head.heads < at->second.tensor->heads) at->second.order = Order::kHeadTokenDim;
    if (wanted.HasTokens(head.token_begin, head.token_begin + head.tokens))
      chunks.push_back(&chunk);
  }
  for (const auto& [key, place] : places) {
    if (place.covered == place.tensor->bytes()) continue;
    const bool lost = !archive.damage().empty();
    throw Error(lost ? Finding::kLostChunk : Finding::kUnsupportedLayout,
                lost ? "chunks are lost" : "the values lie in opaque chunks")
        .In(Label(key))
        .File(archive.data().name())
        .Hint(lost ? "'kvtool verify' lists the damage"
                   : "decompress the archive without --to and convert the restored source");
  }
  return chunks;
}

}  // namespace

Snapshot LoadTensors(const Archive& archive, const Selection& wanted, ThreadPool& pool,
                     Progress* progress) {
  if (!archive.description()) {
    throw Error(Finding::kUnsupportedKind, "the archive holds opaque bytes, not tensors")
        .File(archive.data().name())
        .Hint("decompress it without --to to get the source back");
  }
  Snapshot snapshot = *archive.description();
  std::map<PlaceKey, Place> places;
  const uint64_t size = PlaceTensors(snapshot, wanted, places);
  const std::vector<const ArchivedChunk*> chunks = ListChunks(archive, wanted, places);

  SpoolFile spool;
  if (::ftruncate(spool.descriptor(), static_cast<off_t>(size)) != 0)
    throw Error(Finding::kWriteFailed, "cannot size the temporary file");
  if (progress != nullptr) {
    uint64_t total = 0;
    for (const ArchivedChunk* chunk : chunks) total += chunk->head.raw_bytes;
    progress->Begin(total);
  }
  Reuse<DecoderScratch> workspaces;
  pool.ParallelFor(chunks.size(), [&](uint64_t i) {
    const Reuse<DecoderScratch>::Lease lease(workspaces);
    auto& [codec, raw, scratch] = *lease;
    const ArchivedChunk& chunk = *chunks[i];
    try {
      archive.Decode(chunk, codec, raw);
    } catch (Error& error) {
      throw error.File(archive.data().name());
    }
    const bool is_value = chunk.head.kind == ChunkKind::kValue;
    WriteChunk(chunk.head, places.find({chunk.head.layer, is_value})->second, raw, scratch, spool);
    archive.data().Drop(chunk.record_offset, chunk.record_end() - chunk.record_offset);
    if (progress != nullptr) progress->Advance(chunk.head.raw_bytes);
  });

  const std::shared_ptr<const FileSource> bytes = spool.Release("temporary file");
  for (const auto& [key, place] : places) {
    KvTensor& tensor = *place.tensor;
    const bool heads_known = tensor.heads_known;
    tensor = ContiguousTensor(bytes->bytes().data() + place.offset, tensor.dtype, tensor.tokens(),
                              tensor.heads, tensor.head_dim, place.order);
    tensor.heads_known = heads_known;
  }
  for (LayerKv& layer : snapshot.layers) {
    if (!wanted.keys) layer.k.pieces.clear();
    if (!wanted.values) layer.v.reset();
  }
  snapshot.spools.push_back(bytes);
  return snapshot;
}

}  // namespace kv
