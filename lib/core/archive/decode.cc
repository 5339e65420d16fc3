// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Chunks of an archive, and what they need before they can be decoded.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/core/archive/archive.h"
#include "lib/core/archive/coded_rows.h"
#include "lib/core/archive/neighbours.h"
#include "lib/core/archive/records.h"
#include "lib/core/archive/row_order.h"
#include "lib/core/base/hash.h"
#include "lib/core/codec/ref/ref.h"

namespace kv {

using namespace kvz;
namespace {

bool IsLayered(const ChunkHead& head) { return HasNeighbours(static_cast<CodecId>(head.codec)); }
uint32_t DepthOf(const ChunkHead& head) { return IsLayered(head) ? head.codec_parameter : 0; }

std::vector<Neighbour> NeighboursOf(const ChunkHead& head, ByteSpan payload) {
  return head.codec == static_cast<uint8_t>(CodecId::kLayers)
             ? ReadNeighbours(payload)
             : ReadErrorNeighbours(head.shape(), payload);
}

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

void Archive::DecodeOwnRows(const ArchivedChunk& chunk, CodecScratch& scratch,
                            std::span<std::byte> rows) const {
  try {
    DecodeRowsWithoutReference(
        chunk.head.shape(),
        Payload(data_->bytes(), chunk.payload_offset, chunk.payload_bytes, chunk.payload_hash),
        scratch, rows, {}, DecodeChunk);
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
      neighbours = NeighboursOf(one.head, Payload(data_->bytes(), one.payload_offset,
                                                  one.payload_bytes, one.payload_hash));
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
  if (const std::optional<size_t> place = PlaceAmongNeighbours(chunk)) {
    const std::shared_ptr<const Bytes> decoded = DecodeWithNeighbours(*place, scratch);
    raw.assign(decoded->begin(), decoded->end());
    return;
  }
  DecodeBy(chunk, nullptr, scratch, raw);
}

void Archive::Decode(const ArchivedChunk& chunk, CodecScratch& scratch,
                     std::span<std::byte> raw) const {
  KV_ASSERT(raw.size() == chunk.head.raw_bytes);
  if (const std::optional<size_t> place = PlaceAmongNeighbours(chunk)) {
    std::ranges::copy(*DecodeWithNeighbours(*place, scratch), raw.begin());
    return;
  }
  try {
    DecodePayload(chunk, PayloadOf(chunk), nullptr, scratch, raw);
  } catch (Error& error) {
    throw error.In(Describe(chunk.head));
  }
}

// Of a chunk that others may be coded by, or that is coded by others.
std::optional<size_t> Archive::PlaceAmongNeighbours(const ArchivedChunk& chunk) const {
  if (!neighbours_->any || !CanBeNeighbour(chunk.head)) return std::nullopt;
  const std::less<const ArchivedChunk*> before;
  if (before(&chunk, chunks_.data()) || !before(&chunk, chunks_.data() + chunks_.size()))
    return std::nullopt;
  return static_cast<size_t>(&chunk - chunks_.data());
}

// One that others are coded by is wanted again soon.
std::shared_ptr<const Bytes> Archive::DecodeWithNeighbours(size_t place,
                                                           CodecScratch& scratch) const {
  const ArchivedChunk& chunk = chunks_[place];
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
  return decoded;
}

void Archive::DecodeBy(const ArchivedChunk& chunk, const NeighbourSource* neighbours,
                       CodecScratch& scratch, Bytes& raw) const {
  try {
    const ByteSpan payload = PayloadOf(chunk);
    raw.resize(chunk.head.raw_bytes);
    DecodePayload(chunk, payload, neighbours, scratch, raw);
  } catch (Error& error) {
    throw error.In(Describe(chunk.head));
  }
}

// Checked, and of a codec that can be decoded.
ByteSpan Archive::PayloadOf(const ArchivedChunk& chunk) const {
  data_->Need(chunk.payload_offset, chunk.payload_bytes);
  const ByteSpan payload =
      Payload(data_->bytes(), chunk.payload_offset, chunk.payload_bytes, chunk.payload_hash);
  const auto codec = static_cast<CodecId>(chunk.head.codec);
  if (Name(codec).empty()) {
    throw Error(Finding::kUnsupportedVersion,
                fmt::format("codec {} is unknown to this program", chunk.head.codec));
  }
  if (codec == CodecId::kProfiled && profile_missing_) throw *profile_missing_;
  return payload;
}

void Archive::DecodePayload(const ArchivedChunk& chunk, ByteSpan payload,
                            const NeighbourSource* neighbours, CodecScratch& scratch,
                            std::span<std::byte> raw) const {
  const ChunkHead& head = chunk.head;
  const auto codec = static_cast<CodecId>(head.codec);
  const std::shared_ptr<const RowOrder> order = OrderOf(head);
  const RowsOfReferences references(references_);
  std::optional<OrderedNeighbours> ordered_neighbours;
  if (neighbours != nullptr) ordered_neighbours.emplace(*neighbours, order.get());
  const auto decode = [&](bool content_is_checked) {
    DecodeRows(codec, head, payload, order.get(), raw, scratch,
               {.references = &references,
                .neighbours = ordered_neighbours ? &*ordered_neighbours : nullptr,
                .profile = profile_.get(),
                .content_is_checked = content_is_checked});
  };
  const bool has_references = HasReferences(codec);
  decode(has_references);
  uint64_t computed = Hash64(raw);
  if (computed != head.raw_hash && has_references) {
    decode(false);  // names the reference that differs
    computed = Hash64(raw);
  }
  if (computed != head.raw_hash) {
    throw Error(Finding::kChecksum, fmt::format("decoded bytes: checksum {:016x} stored, {:016x} "
                                                "computed",
                                                head.raw_hash, computed))
        .At(chunk.payload_offset);
  }
}

}  // namespace kv
