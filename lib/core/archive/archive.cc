// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/core/archive/coded_rows.h"
#include "lib/core/archive/neighbours.h"
#include "lib/core/archive/records.h"
#include "lib/core/archive/transformed_chunks.h"
#include "lib/core/base/hash.h"
#include "lib/core/codec/profiled/profiled.h"
#include "lib/core/codec/ref/ref.h"

// Implements an open archive: access to chunks, decoding, and checks of its records.
namespace kv {

using namespace kvz;

Error Damage::AsError() const {
  Error error(finding, text);
  error.At(offset);
  error.In(Place());
  return error;
}

std::string Damage::Place() const { return chunk ? Describe(*chunk) : part; }

uint64_t Archive::source_bytes() const {
  uint64_t total = 0;
  for (const ArchivedFile& file : files_) total += file.size;
  return total;
}

uint64_t Archive::stored_bytes(ChunkKind kind) const {
  uint64_t total = 0;
  for (const ArchivedChunk& chunk : chunks_) {
    if (chunk.head.kind == kind) total += chunk.payload_bytes;
    if (kind == ChunkKind::kOpaque) total += chunk.head.lead.size();
  }
  return total;
}

uint64_t Archive::raw_bytes(ChunkKind kind) const {
  uint64_t total = 0;
  for (const ArchivedChunk& chunk : chunks_) {
    if (chunk.head.kind == kind) total += chunk.head.raw_bytes;
    if (kind == ChunkKind::kOpaque) total += chunk.head.lead.size();
  }
  return total;
}

uint64_t Archive::profiled_chunks() const {
  return static_cast<uint64_t>(
      std::count_if(chunks_.begin(), chunks_.end(), [](const ArchivedChunk& chunk) {
        return NeedsProfile(static_cast<CodecId>(chunk.head.codec));
      }));
}

uint64_t Archive::ordered_chunks() const {
  return static_cast<uint64_t>(
      std::count_if(chunks_.begin(), chunks_.end(),
                    [](const ArchivedChunk& chunk) { return chunk.head.by_cells; }));
}

uint64_t Archive::transformed_chunks() const {
  return static_cast<uint64_t>(
      std::count_if(chunks_.begin(), chunks_.end(),
                    [](const ArchivedChunk& chunk) { return chunk.head.is_transformed(); }));
}

void Archive::RequireTransform() const {
  if (transform_ != nullptr || transformed_chunks() == 0) return;
  if (transform_missing_) throw *transform_missing_;
  throw Error(Finding::kProfileMissing, "the archive needs the transform that it was coded with");
}

std::shared_ptr<const Profile> Archive::ReadEmbeddedProfile() const {
  KV_ASSERT(profile_name_ && profile_name_->embedded);
  const ByteSpan bytes = data_->bytes();
  const auto read = [&](uint64_t offset) {
    data_->Need(offset, std::min(bytes.size() - offset, kPrefixBytes + kMaxHeadBytes));
    return ReadRecord(bytes, offset);
  };
  const uint64_t offset = read(kHeaderBytes).end();
  if (offset >= bytes.size())
    throw Error(Finding::kTruncated, "the archive ends before its profile");
  const Record record = read(offset);
  if (record.type != static_cast<uint32_t>(RecordType::kProfile)) {
    throw Error(Finding::kMissingRecord, "the second record is not the profile").At(offset);
  }
  data_->Need(record.payload_offset, std::min(record.payload_bytes, bytes.size() - offset));
  auto profile = Profile::Read(ReadTable(bytes, record, kMostProfileBytes));
  if (profile->hash() != profile_name_->hash)
    throw Error(Finding::kInconsistent, "the archive holds another profile than it names")
        .At(offset);
  return profile;
}

void Archive::RequireProfile() const {
  if (profile_ != nullptr || profiled_chunks() == 0) return;
  if (profile_missing_) throw *profile_missing_;
  throw Error(Finding::kProfileMissing, "the archive needs the profile that it was coded with");
}

bool Archive::HoldsTensor(size_t layer_position, bool is_value) const {
  return holds_tensor_.at(layer_position)[is_value ? 1 : 0];
}

const FileGroup* Archive::FindGroup(uint32_t file) const {
  const auto at = grouped_.find(file);
  return at == grouped_.end() ? nullptr : &groups_[at->second.group];
}

const GroupLayout& Archive::FindLayout(const FileGroup& group) const {
  return layouts_[static_cast<size_t>(&group - groups_.data())];
}

const ArchivedChunk* Archive::FindChunk(uint32_t file, uint64_t offset) const {
  if (const auto grouped = grouped_.find(file); grouped != grouped_.end()) {
    const FileGroup& group = groups_[grouped->second.group];
    offset = FindLayout(group).JoinedOffset(grouped->second.place, offset);
    file = group.first();
  }
  auto at = std::upper_bound(chunks_.begin(), chunks_.end(), std::pair(file, offset),
                             [](const auto& place, const ArchivedChunk& chunk) {
                               return place < std::pair(chunk.head.file, chunk.head.source_offset);
                             });
  while (at != chunks_.begin()) {
    const ChunkHead& head = (--at)->head;
    if (head.file != file || offset >= head.source_offset + head.extent_bytes) return nullptr;
    if (!head.shares_extent()) return &*at;
    const uint64_t token = (offset - head.source_offset) / head.unit_bytes % head.extent_tokens;
    if (token >= head.extent_token_begin && token < head.extent_token_begin + head.tokens) {
      return &*at;
    }
  }
  return nullptr;
}

// Archive::CheckRecords and the functions after it find damage and gaps without decoding anything.

std::vector<Damage> Archive::CheckRecords() const {
  std::vector<Damage> damage;
  if (!index_offset_) return damage;  // without an index, Open has read every record
  data_->NeedAll();
  const ByteSpan bytes = data_->bytes();
  const auto check = [&](std::string part, uint64_t offset, std::optional<ChunkHead> head,
                         const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      damage.push_back({std::move(part), error.message(), error.finding(),
                        error.offset().value_or(offset), head});
    }
  };
  uint64_t expected = kHeaderBytes;
  check("source record", expected, std::nullopt, [&] {
    const Record record = ReadRecord(bytes, kHeaderBytes);
    expected = std::max(record.end(), expected);
    Payload(bytes, record.payload_offset, record.payload_bytes, record.payload_hash);
  });
  if (damage.empty() && profile_name_ && profile_name_->embedded) {
    check("profile", expected, std::nullopt, [&] {
      ReadEmbeddedProfile();
      expected = ReadRecord(bytes, expected).end();
    });
  }
  std::vector<const ArchivedChunk*> order;
  for (const ArchivedChunk& chunk : chunks_) order.push_back(&chunk);
  std::sort(order.begin(), order.end(), [](const ArchivedChunk* a, const ArchivedChunk* b) {
    return a->record_offset < b->record_offset;
  });
  bool sure = damage.empty();  // true while `expected` is known to be the next record's offset
  const auto expect = [&](uint64_t offset) {
    if (sure && offset != expected) {
      damage.push_back({"record",
                        fmt::format("{} bytes belong to no record",
                                    static_cast<int64_t>(offset) - static_cast<int64_t>(expected)),
                        Finding::kTrailingBytes, expected, std::nullopt});
    }
    sure = true;
  };
  for (const ArchivedChunk* chunk : order) {
    expect(chunk->record_offset);
    check("chunk", chunk->record_offset, chunk->head, [&] {
      const Record record = ReadRecord(bytes, chunk->record_offset);
      ByteReader in(record.head, record.offset + kPrefixBytes);
      const bool same = record.type == static_cast<uint32_t>(RecordType::kChunk) &&
                        ReadHead(in) == chunk->head &&
                        record.payload_offset == chunk->payload_offset &&
                        record.payload_bytes == chunk->payload_bytes &&
                        record.payload_hash == chunk->payload_hash;
      if (!same) throw Error(Finding::kInconsistent, "the record contradicts the index");
    });
    data_->Drop(chunk->record_offset, kFaultWindow);
    expected = chunk->record_end();
  }
  expect(*index_offset_);
  return damage;
}

std::vector<Damage> Archive::CheckStored(ThreadPool& pool) const {
  std::vector<Damage> damage = CheckRecords();
  std::vector<std::optional<Error>> failures(chunks_.size());
  pool.ParallelFor(chunks_.size(), [&](uint64_t i) {
    const ArchivedChunk& chunk = chunks_[i];
    try {
      Payload(data_->bytes(), chunk.payload_offset, chunk.payload_bytes, chunk.payload_hash);
    } catch (const Error& error) {
      failures[i] = error;
    }
    data_->Drop(chunk.record_offset, chunk.record_end() - chunk.record_offset);
  });
  for (size_t i = 0; i < failures.size(); ++i) {
    if (!failures[i]) continue;
    damage.push_back({"chunk", failures[i]->message(), failures[i]->finding(),
                      failures[i]->offset().value_or(0), chunks_[i].head});
  }
  return damage;
}

std::vector<ChunkHead> Archive::MissingTokens() const {
  std::vector<ChunkHead> missing;
  if (!description_ || has_index()) return missing;
  // Maps each tensor to its ranges of tokens and the bytes of each row that are present. A token
  // counts as missing if part of its row is.
  std::map<std::pair<uint32_t, bool>, std::map<uint64_t, std::pair<uint64_t, uint64_t>>> held;
  for (const ArchivedChunk& chunk : chunks_) {
    const ChunkHead& head = chunk.head;
    if (head.kind == ChunkKind::kOpaque || chunk.record_end() > data_->size()) continue;
    auto& range = held[{head.layer, head.kind == ChunkKind::kValue}][head.token_begin];
    range.first = std::max(range.first, head.tokens);
    range.second += head.raw_bytes;
  }
  const auto look = [&](const LayerKv& layer, const KvTensor& tensor, bool is_value) {
    const auto add = [&](uint64_t begin, uint64_t end) {
      if (begin >= end) return;
      ChunkHead& head = missing.emplace_back();
      head.kind = is_value ? ChunkKind::kValue : ChunkKind::kKey;
      head.layer = layer.index;
      head.token_begin = begin;
      head.tokens = end - begin;
    };
    uint64_t next = 0;
    for (const auto& [begin, range] : held[{layer.index, is_value}]) {
      if (range.second < range.first * tensor.row_bytes()) continue;
      add(next, begin);
      next = std::max(next, begin + range.first);
    }
    add(next, tensor.tokens());
  };
  for (size_t i = 0; i < description_->layers.size(); ++i) {
    const LayerKv& layer = description_->layers[i];
    if (holds_tensor_[i][0]) look(layer, layer.k, false);
    if (layer.v && holds_tensor_[i][1]) look(layer, *layer.v, true);
  }
  return missing;
}

// Gives decoders access to chunks and to their other inputs.

namespace {

bool IsLayered(const ChunkHead& head) { return HasNeighbours(static_cast<CodecId>(head.codec)); }
uint32_t FindDepth(const ChunkHead& head) { return IsLayered(head) ? head.codec_parameter : 0; }

std::vector<Neighbour> ReadNeighbourList(const ChunkHead& head, ByteSpan payload,
                                         const Profile* profile) {
  const auto codec = static_cast<CodecId>(head.codec);
  if (NeedsProfile(codec)) return ReadProfiledNeighbours(payload, profile);
  return HasReferences(codec) ? ReadErrorNeighbours(head.shape(), payload)
                              : ReadNeighbours(payload);
}

Error LostWith(const ChunkHead& needed, std::string_view why) {
  return Error(Finding::kLostChunk, "it needs {}, which {}", Describe(needed), why);
}

}  // namespace

// Supplies the neighbours in `known`, which NeededBy listed and which are decoded already.
class Archive::NeighbourRows : public NeighbourSource {
 public:
  NeighbourRows(const Archive& archive, const ChunkHead& of,
                const std::map<size_t, std::shared_ptr<const Bytes>>& known)
      : archive_(archive), of_(of), known_(known) {}

  NeighbourChunk Read(const Neighbour& neighbour) const override {
    const std::optional<size_t> place = archive_.FindNeighbour(of_, neighbour);
    const auto at = place ? known_.find(*place) : known_.end();
    if (at == known_.end()) throw Error(Finding::kLostChunk, "it needs other archived chunks");
    return {archive_.chunks_[*place].head.dtype, at->second};
  }

 private:
  const Archive& archive_;
  const ChunkHead& of_;
  const std::map<size_t, std::shared_ptr<const Bytes>>& known_;
};

std::vector<ReferenceRun> Archive::ListRuns(const ArchivedChunk& chunk) const {
  if (!HasReferences(static_cast<CodecId>(chunk.head.codec))) return {};
  data_->Need(chunk.payload_offset, chunk.payload_bytes);
  const ByteSpan payload =
      Payload(data_->bytes(), chunk.payload_offset, chunk.payload_bytes, chunk.payload_hash);
  return ReadReferenceRuns(chunk.head.shape(), payload);
}

std::vector<ReferenceRun> Archive::ReadRunsUnchecked(const ArchivedChunk& chunk) const {
  const ByteSpan bytes = data_->bytes();
  if (chunk.payload_offset > bytes.size() ||
      chunk.payload_bytes > bytes.size() - chunk.payload_offset) {
    return ListRuns(chunk);  // throws the precise error
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

std::shared_ptr<const RowOrder> Archive::FindOrder(const ChunkHead& head) const {
  if (!head.by_cells) return nullptr;
  std::shared_ptr<const RowOrder> order =
      orders_ == nullptr ? nullptr : orders_->Of(head.layer, head.token_begin, head.tokens);
  if (order == nullptr)
    throw Error(Finding::kInconsistent,
                "its rows are in cell order, but the archive describes no cells");
  return order;
}

// Returns nullopt if no chunk has these tokens. Throws kBadFrame if this neighbour is forbidden.
std::optional<size_t> Archive::FindNeighbour(const ChunkHead& head,
                                             const Neighbour& neighbour) const {
  const std::optional<size_t> place = neighbours_->index.Find(head, neighbour);
  if (place && FindDepth(chunks_[*place].head) >= FindDepth(head)) {
    throw Error(Finding::kBadFrame, "it needs {}, whose depth is not lower",
                Describe(chunks_[*place].head));
  }
  return place;
}

size_t Archive::FindCoefficients(const ArchivedChunk& chunk) const {
  const ChunkHead& head = chunk.head;
  ChunkHead needed = head;
  if (head.codec_parameter != 0) needed.layer = head.codec_parameter - 1;
  const auto at = neighbours_->coefficients.find(
      std::tuple(needed.layer, head.kind, head.token_begin, head.tokens));
  if (at == neighbours_->coefficients.end()) throw LostWith(needed, "is missing");
  return at->second;
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
    if (one.head.is_transformed() && one.head.codec_parameter != 0) {
      const size_t place = FindCoefficients(one);
      if (needed.insert(place).second) open.push_back(&chunks_[place]);
    }
    if (!IsLayered(one.head)) continue;
    if (one.head.codec_parameter > kMaxLayerDepth)
      throw Error(Finding::kLimit, "a chunk of depth {}, at most {} expected",
                  one.head.codec_parameter, kMaxLayerDepth);
    if (NeedsProfile(static_cast<CodecId>(one.head.codec))) RequireProfile();
    data_->Need(one.payload_offset, one.payload_bytes);
    std::vector<Neighbour> neighbours;
    try {
      neighbours = ReadNeighbourList(
          one.head,
          Payload(data_->bytes(), one.payload_offset, one.payload_bytes, one.payload_hash),
          profile_.get());
    } catch (const Error& error) {
      if (&one == &chunk) throw;
      throw LostWith(one.head, "is damaged: " + std::string(error.message()));
    }
    for (const Neighbour& neighbour : neighbours) {
      const std::optional<size_t> place = FindNeighbour(one.head, neighbour);
      if (!place) {
        ChunkHead missing = one.head;
        missing.layer = neighbour.layer;
        missing.kind = neighbour.is_value ? ChunkKind::kValue : ChunkKind::kKey;
        throw LostWith(missing, "is missing");
      }
      if (!needed.insert(*place).second) continue;
      bytes += chunks_[*place].head.raw_bytes;
      if (needed.size() > kMostNeededChunks || bytes > kMostNeededBytes)
        throw Error(Finding::kLimit, "it needs too many other chunks");
      open.push_back(&chunks_[*place]);
    }
  }
  std::vector<size_t> order(needed.begin(), needed.end());
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return FindDepth(chunks_[a].head) < FindDepth(chunks_[b].head);
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
    DecodePayload(chunk, ReadPayload(chunk), nullptr, scratch, raw);
  } catch (Error& error) {
    throw error.In(Describe(chunk.head));
  }
}

// Returns the place of a chunk that is predicted from others or from which others are predicted;
// nullopt for all other chunks.
std::optional<size_t> Archive::PlaceAmongNeighbours(const ArchivedChunk& chunk) const {
  if (!neighbours_->any || !CanBeNeighbour(chunk.head)) return std::nullopt;
  const std::less<const ArchivedChunk*> before;
  if (before(&chunk, chunks_.data()) || !before(&chunk, chunks_.data() + chunks_.size()))
    return std::nullopt;
  return static_cast<size_t>(&chunk - chunks_.data());
}

// Caches the result: a chunk from which others are predicted is needed again soon.
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
    const ByteSpan payload = ReadPayload(chunk);
    raw.resize(chunk.head.raw_bytes);
    DecodePayload(chunk, payload, neighbours, scratch, raw);
  } catch (Error& error) {
    throw error.In(Describe(chunk.head));
  }
}

// Returns the payload after checking its hash and that this program knows the codec.
ByteSpan Archive::ReadPayload(const ArchivedChunk& chunk) const {
  data_->Need(chunk.payload_offset, chunk.payload_bytes);
  const ByteSpan payload =
      Payload(data_->bytes(), chunk.payload_offset, chunk.payload_bytes, chunk.payload_hash);
  const auto codec = static_cast<CodecId>(chunk.head.codec);
  if (Name(codec).empty()) {
    throw Error(Finding::kUnsupportedVersion, "codec {} is unknown to this program",
                chunk.head.codec);
  }
  if (NeedsProfile(codec) && profile_missing_) throw *profile_missing_;
  if (codec == CodecId::kTransformed) RequireTransform();
  return payload;
}

void Archive::DecodeTransformed(const ArchivedChunk& chunk, ByteSpan payload,
                                std::span<std::byte> raw) const {
  const size_t place = FindCoefficients(chunk);
  const ArchivedChunk& holder = chunks_[place];
  if (&holder != &chunk && !payload.empty())
    throw Error(Finding::kTrailingBytes, "a chunk uses layer {}'s coefficients but has a payload",
                holder.head.layer);
  // The holder must be of the same group, otherwise its coefficients belong to other components.
  const bool is_value = chunk.head.kind == ChunkKind::kValue;
  const auto& group = transform_->FindGroup(chunk.head.layer, is_value);
  if (&transform_->FindGroup(holder.head.layer, is_value) != &group)
    throw Error(Finding::kBadFrame, "its coefficients belong to other layers");
  // For most chunks the coefficients are cached; then the payload need not even be hashed.
  ArchiveTransform::Coefficients coefficients = transform_->FindDecoded(place);
  if (coefficients == nullptr) {
    ByteSpan stream = payload;
    if (&holder != &chunk) {
      try {
        stream = ReadPayload(holder);
      } catch (const Error& error) {
        throw LostWith(holder.head, "is damaged: " + std::string(error.message()));
      }
    }
    coefficients = transform_->Decode(holder.head, place, stream);
  }
  transform_->Restore(chunk.head, *coefficients, raw);
}

void Archive::DecodePayload(const ArchivedChunk& chunk, ByteSpan payload,
                            const NeighbourSource* neighbours, CodecScratch& scratch,
                            std::span<std::byte> raw) const {
  const ChunkHead& head = chunk.head;
  const auto codec = static_cast<CodecId>(head.codec);
  const std::shared_ptr<const RowOrder> order = FindOrder(head);
  const RowsOfReferences references(references_);
  std::optional<OrderedNeighbours> ordered_neighbours;
  if (neighbours != nullptr) ordered_neighbours.emplace(*neighbours, order.get());
  const auto decode = [&](bool content_is_checked) {
    if (head.is_transformed()) return DecodeTransformed(chunk, payload, raw);
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
    decode(false);  // throws kReferenceDiffers, which names the reference
    computed = Hash64(raw);
  }
  if (computed != head.raw_hash) {
    throw Error(Finding::kChecksum, "decoded bytes: checksum {:016x} stored, {:016x} computed",
                head.raw_hash, computed)
        .At(chunk.payload_offset);
  }
}

}  // namespace kv
