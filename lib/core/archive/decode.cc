// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Chunks of an archive, and what they need before they can be decoded.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/core/archive/archive.h"
#include "lib/core/archive/neighbours.h"
#include "lib/core/archive/records.h"
#include "lib/core/archive/row_order.h"
#include "lib/core/base/hash.h"

namespace kv {

using namespace kvz;
namespace {

bool IsLayered(const ChunkHead& head) {
  return head.codec == static_cast<uint8_t>(CodecId::kLayers);
}
uint32_t DepthOf(const ChunkHead& head) { return IsLayered(head) ? head.codec_parameter : 0; }

Error LostWith(const ChunkHead& needed, std::string_view why) {
  return Error(Finding::kLostChunk,
               fmt::format("it is coded by {}, which {}", Describe(needed), why));
}

}  // namespace

// Neighbours that were decoded before.
class Archive::NeighbourRows : public NeighbourSource {
 public:
  NeighbourRows(const Archive& archive, const ChunkHead& of,
                const std::map<size_t, std::shared_ptr<const Bytes>>& known)
      : archive_(archive), of_(of), known_(known) {}

  NeighbourChunk Read(const Neighbour& neighbour) const override {
    const std::optional<size_t> place = archive_.NeighbourOf(of_, neighbour);
    const auto at = place ? known_.find(*place) : known_.end();
    if (at == known_.end()) throw Error(Finding::kLostChunk, "it needs others of its archive");
    return {archive_.chunks_[*place].head.dtype, at->second};
  }

 private:
  const Archive& archive_;
  const ChunkHead& of_;
  const std::map<size_t, std::shared_ptr<const Bytes>>& known_;
};

std::vector<ReferenceRun> Archive::RunsOf(const ArchivedChunk& chunk) const {
  if (!HasReferences(static_cast<CodecId>(chunk.head.codec))) return {};
  data_->Need(chunk.payload_offset, chunk.payload_bytes);
  const ByteSpan payload =
      Payload(data_->bytes(), chunk.payload_offset, chunk.payload_bytes, chunk.payload_hash);
  return ReadReferenceRuns(chunk.head.shape(), payload);
}

std::vector<ReferenceRun> Archive::UncheckedRunsOf(const ArchivedChunk& chunk) const {
  const ByteSpan bytes = data_->bytes();
  if (chunk.payload_offset > bytes.size() ||
      chunk.payload_bytes > bytes.size() - chunk.payload_offset) {
    return RunsOf(chunk);  // says so
  }
  return ReadReferenceRuns(chunk.head.shape(),
                           bytes.subspan(chunk.payload_offset, chunk.payload_bytes));
}

void Archive::DecodeOwnRows(const ArchivedChunk& chunk, CodecScratch& scratch, Bytes& rows) const {
  try {
    DecodeRowsWithoutReference(
        chunk.head.shape(),
        Payload(data_->bytes(), chunk.payload_offset, chunk.payload_bytes, chunk.payload_hash),
        scratch, rows);
  } catch (Error& error) {
    throw error.In(Describe(chunk.head));
  }
}

bool Archive::HasNeighbours() const { return neighbours_->any; }

std::shared_ptr<const RowOrder> Archive::OrderOf(const ChunkHead& head) const {
  if (!head.by_cells) return nullptr;
  std::shared_ptr<const RowOrder> order =
      orders_ == nullptr ? nullptr : orders_->Of(head.layer, head.token_begin, head.tokens);
  if (order == nullptr)
    throw Error(Finding::kInconsistent,
                "the order of its rows is that of cells that are not there");
  return order;
}

// Nothing where no chunk has these tokens. Throws kBadFrame if it may not be looked at.
std::optional<size_t> Archive::NeighbourOf(const ChunkHead& head,
                                           const Neighbour& neighbour) const {
  const std::optional<size_t> place = neighbours_->index.Find(head, neighbour);
  if (place && DepthOf(chunks_[*place].head) >= DepthOf(head)) {
    throw Error(Finding::kBadFrame, fmt::format("it is coded by {}, which is no less deep",
                                                Describe(chunks_[*place].head)));
  }
  return place;
}

std::vector<size_t> Archive::NeededBy(
    const ArchivedChunk& chunk, const std::function<void(const ArchivedChunk&)>& bring) const {
  std::set<size_t> needed;
  uint64_t bytes = 0;
  std::vector<const ArchivedChunk*> open = {&chunk};
  while (!open.empty()) {
    const ArchivedChunk& one = *open.back();
    open.pop_back();
    if (bring) bring(one);
    if (!IsLayered(one.head)) continue;
    if (one.head.codec_parameter > kMaxLayerDepth)
      throw Error(Finding::kLimit, fmt::format("a chunk {} deep", one.head.codec_parameter));
    data_->Need(one.payload_offset, one.payload_bytes);
    std::vector<Neighbour> neighbours;
    try {
      neighbours = ReadNeighbours(
          Payload(data_->bytes(), one.payload_offset, one.payload_bytes, one.payload_hash));
    } catch (const Error& error) {
      if (&one == &chunk) throw;
      throw LostWith(one.head, "is damaged: " + std::string(error.message()));
    }
    for (const Neighbour& neighbour : neighbours) {
      const std::optional<size_t> place = NeighbourOf(one.head, neighbour);
      if (!place) {
        ChunkHead missing = one.head;
        missing.layer = neighbour.layer;
        missing.kind = neighbour.is_value ? ChunkKind::kValue : ChunkKind::kKey;
        throw LostWith(missing, "is not there");
      }
      if (!needed.insert(*place).second) continue;
      bytes += chunks_[*place].head.raw_bytes;
      if (needed.size() > kMostNeededChunks || bytes > kMostNeededBytes)
        throw Error(Finding::kLimit, "it is coded by too many others");
      open.push_back(&chunks_[*place]);
    }
  }
  std::vector<size_t> order(needed.begin(), needed.end());
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return DepthOf(chunks_[a].head) < DepthOf(chunks_[b].head);
  });
  return order;
}

void Archive::Decode(const ArchivedChunk& chunk, CodecScratch& scratch, Bytes& raw) const {
  if (!neighbours_->any || !CanBeNeighbour(chunk.head)) {
    return DecodeBy(chunk, nullptr, scratch, raw);
  }
  // One that others are coded by is wanted again soon.
  const std::less<const ArchivedChunk*> before;
  if (before(&chunk, chunks_.data()) || !before(&chunk, chunks_.data() + chunks_.size()))
    return DecodeBy(chunk, nullptr, scratch, raw);
  const auto place = static_cast<size_t>(&chunk - chunks_.data());
  std::map<size_t, std::shared_ptr<const Bytes>> known;
  const auto decode = [&](size_t at, CodecScratch& with) {
    Bytes decoded;
    const NeighbourRows rows(*this, chunks_[at].head, known);
    DecodeBy(chunks_[at], &rows, with, decoded);
    return decoded;
  };
  std::shared_ptr<const Bytes> decoded = neighbours_->cache.Find(place);
  try {
    std::unique_ptr<CodecScratch> own;
    for (const size_t at : decoded ? std::vector<size_t>() : NeededBy(chunk)) {
      if (own == nullptr) own = std::make_unique<CodecScratch>();
      try {
        known[at] = neighbours_->cache.Get(at, [&](size_t one) { return decode(one, *own); });
      } catch (const Error& error) {
        throw LostWith(chunks_[at].head, "is lost: " + std::string(error.message()));
      }
    }
  } catch (Error& error) {
    throw error.In(Describe(chunk.head));
  }
  if (!decoded)
    decoded = neighbours_->cache.Get(place, [&](size_t one) { return decode(one, scratch); });
  raw.assign(decoded->begin(), decoded->end());
}

void Archive::DecodeBy(const ArchivedChunk& chunk, const NeighbourSource* neighbours,
                       CodecScratch& scratch, Bytes& raw) const {
  const ChunkHead& head = chunk.head;
  data_->Need(chunk.payload_offset, chunk.payload_bytes);
  try {
    const ByteSpan payload =
        Payload(data_->bytes(), chunk.payload_offset, chunk.payload_bytes, chunk.payload_hash);
    const auto codec = static_cast<CodecId>(head.codec);
    if (Name(codec).empty()) {
      throw Error(Finding::kUnsupportedVersion,
                  fmt::format("codec {} is unknown to this program", head.codec));
    }
    if (codec == CodecId::kProfiled && profile_missing_) throw *profile_missing_;
    raw.resize(head.raw_bytes);
    const std::shared_ptr<const RowOrder> order = OrderOf(head);
    const RowsOfReferences references(references_);
    std::optional<OrderedNeighbours> ordered_neighbours;
    if (neighbours != nullptr) ordered_neighbours.emplace(*neighbours, order.get());
    scratch.references = &references;
    scratch.profile = profile_.get();
    scratch.neighbours = ordered_neighbours ? &*ordered_neighbours : nullptr;
    const StepsForNow steps(order == nullptr ? RowSteps() : RowSteps(order->steps), scratch);
    const std::span<std::byte> coded =
        order == nullptr ? std::span(raw) : scratch.ordered.Get(raw.size()).first(raw.size());
    DecodeChunk(codec, head.shape(), payload, coded, scratch);
    scratch.references = nullptr;
    scratch.profile = nullptr;
    scratch.neighbours = nullptr;
    if (order != nullptr) order->Undo(coded, raw);
    const uint64_t computed = Hash64(raw);
    if (computed != head.raw_hash) {
      throw Error(Finding::kChecksum, fmt::format("decoded bytes: checksum {:016x} stored, {:016x} "
                                                  "computed",
                                                  head.raw_hash, computed))
          .At(chunk.payload_offset);
    }
  } catch (Error& error) {
    throw error.In(Describe(head));
  }
}

}  // namespace kv
