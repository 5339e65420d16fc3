// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/chunk_encoder.h"

#include <algorithm>
#include <cstring>

#include "lib/core/archive/coded_rows.h"
#include "lib/core/base/hash.h"
#include "lib/core/codec/profiled/profiled.h"

namespace kv::kvz {
namespace {

// Chunks are coded by others if that saves one byte in so many.
constexpr uint64_t kLeastGainByLayers = 200;

// The type of small files that no reader knows: that of floats where a sample of them says so.
DType GuessedType(ByteSpan raw, Effort effort, CodecScratch& scratch) {
  constexpr size_t kSample = 32 << 10;
  constexpr uint64_t kGainOneIn = 32;
  const ByteSpan sample = raw.first(std::min(raw.size(), kSample) / 4 * 4);
  if (effort == Effort::kCompat || raw.size() % 4 != 0 || sample.empty()) return DType::kU8;
  const auto cost = [&](DType dtype) {
    const ChunkShape shape{.dtype = dtype, .order = Order::kStorage};
    EncodedChunk coded = EncodeChunk(shape, sample, Effort::kFast, scratch);
    const uint64_t bytes = coded.payload.size();
    scratch.Recycle(std::move(coded.payload));
    return bytes;
  };
  DType best = DType::kU8;
  uint64_t least = cost(best);
  least -= least / kGainOneIn;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    const uint64_t bytes = cost(dtype);
    if (bytes >= least) continue;
    least = bytes;
    best = dtype;
  }
  return best;
}

}  // namespace

std::shared_ptr<const RowOrder> OrderFor(const ChunkHead& head, const RowOrders* orders,
                                         const Bases& bases, Effort effort) {
  if (orders == nullptr || head.kind == ChunkKind::kOpaque) return nullptr;
  const bool is_value = head.kind == ChunkKind::kValue;
  if (!bases.plan.RunsOf(head.layer, is_value, head.token_begin, head.tokens).empty())
    return nullptr;
  std::shared_ptr<const RowOrder> order = orders->Of(head.layer, head.token_begin, head.tokens);
  return order != nullptr && WantsOrder(head, *order, effort) ? order : nullptr;
}

BesideNeighbours ChunkEncoder::NeighboursBeside(const ChunkHead& head,
                                                std::span<const ReferenceRun> runs,
                                                const std::vector<Neighbour>& neighbours,
                                                const NeighbourSource& source) const {
  BesideNeighbours beside{
      .all = {}, .turns = {}, .source = source, .is_value = head.kind == ChunkKind::kValue};
  const auto runs_of = [&](uint32_t layer, bool is_value) {
    return bases_.plan.RunsOf(layer, is_value, head.token_begin, head.tokens);
  };
  const auto same_rows = [](const ReferenceRun& a, const ReferenceRun& b) {
    return std::tie(a.reference, a.first_row, a.rows, a.first_token) ==
           std::tie(b.reference, b.first_row, b.rows, b.first_token);
  };
  for (const Neighbour& one : neighbours) {
    std::vector<ReferenceRun> theirs = runs_of(one.layer, one.is_value);
    if (std::equal(runs.begin(), runs.end(), theirs.begin(), theirs.end(), same_rows))
      beside.all.push_back({one, std::move(theirs)});
  }
  for (const ReferenceRun& run : runs_of(head.layer, false)) beside.turns.push_back(run.turn);
  return beside;
}

EncodedChunk ChunkEncoder::EncodeFirst(ChunkHead& head, ByteSpan raw, const ReferenceRows& rows,
                                       const NeighbourSource& neighbours, const RowSteps& steps,
                                       CodecScratch& scratch) const {
  const InnerEncoder encode = EncoderAt(options_.effort, scratch, steps);
  if (head.kind == ChunkKind::kOpaque) return encode(head.shape(), raw);
  const bool is_value = head.kind == ChunkKind::kValue;
  const std::vector<ReferenceRun> runs =
      bases_.plan.RunsOf(head.layer, is_value, head.token_begin, head.tokens);
  if (!runs.empty()) {
    const NeighbourPlan::Choice choice = plan_.Of(head);
    const BesideNeighbours beside = NeighboursBeside(head, runs, choice.neighbours, neighbours);
    EncodedChunk chunk =
        EncodeByReference(head.shape(), raw, runs, bases_.plan.RotationOf(head.layer), rows,
                          options_.effort, scratch, encode, &beside);
    if (chunk.codec == CodecId::kRefLayers) head.codec_parameter = choice.depth;
    return chunk;
  }
  if (options_.profile == nullptr) return encode(head.shape(), raw);
  const ProfilePlace place{.layer = head.layer, .is_value = is_value};
  return EncodeWithProfile(*options_.profile, place, head.shape(), raw, options_.effort, scratch,
                           encode);
}

// By others of the archive, if that is worth having to decode these first.
void ChunkEncoder::TryNeighbours(ChunkHead& head, ByteSpan raw, const NeighbourSource& neighbours,
                                 const RowSteps& steps, CodecScratch& scratch,
                                 EncodedChunk& chunk) const {
  if (HasReferences(chunk.codec)) return;
  const NeighbourPlan::Choice choice = plan_.Of(head);
  if (choice.neighbours.empty()) return;
  const uint64_t to_beat = chunk.payload.size() - chunk.payload.size() / kLeastGainByLayers;
  Bytes payload = scratch.NewPayload();
  if (EncodeByLayers(head.shape(), raw, head.kind == ChunkKind::kValue, choice.neighbours,
                     neighbours, to_beat, scratch, payload, steps)) {
    std::swap(chunk.payload, payload);
    chunk.codec = CodecId::kLayers;
    chunk.planes.clear();
    head.codec_parameter = choice.depth;
  }
  scratch.Recycle(std::move(payload));
}

void ChunkEncoder::CheckAgainstSource(const ChunkHead& head, const EncodedChunk& encoded,
                                      ByteSpan raw, const RowOrder* order,
                                      const ReferenceRows& rows, const NeighbourSource& neighbours,
                                      Scratch& scratch) const {
  const std::span<std::byte> decoded = scratch.decoded.Get(raw.size()).first(raw.size());
  DecodeRows(encoded.codec, head, encoded.payload, order, decoded, scratch.codec,
             {.references = &rows, .neighbours = &neighbours, .profile = options_.profile.get()});
  if (std::memcmp(decoded.data(), raw.data(), raw.size()) != 0) {
    throw Error(Finding::kInternal, "a chunk does not decode to what was encoded")
        .In(Describe(head));
  }
}

ChunkRecord ChunkEncoder::Encode(const ChunkHead& planned, ByteSpan source, bool is_joined,
                                 uint32_t tag) const {
  const Reuse<Scratch>::Lease lease(scratches_);
  Scratch& scratch = *lease;
  ChunkRecord record{.head = planned, .start = {}, .encoded = {}};
  ChunkHead& head = record.head;
  const ByteSpan extent = source.subspan(head.source_offset, head.extent_bytes);
  // A copy, always: the file may be written to meanwhile, and no encoder is made for bytes that
  // change between two looks.
  std::span<std::byte> raw = scratch.raw.Get(head.raw_bytes).first(head.raw_bytes);
  if (IsStoredAsIs(head)) {
    std::memcpy(raw.data(), extent.data(), raw.size());
  } else {
    GatherChunk(head, extent, raw);
  }
  head.raw_hash = Hash64(raw);
  if (is_joined && head.kind == ChunkKind::kOpaque && head.dtype == DType::kU8)
    head.dtype = GuessedType(raw, options_.effort, scratch.codec);
  const std::shared_ptr<const RowOrder> order = OrderFor(head, orders_, bases_, options_.effort);
  head.by_cells = order != nullptr;
  std::span<std::byte> coded = raw;
  if (order != nullptr) {
    coded = scratch.codec.ordered.Get(raw.size()).first(raw.size());
    order->Apply(raw, coded);
  }
  const RowSteps steps = order == nullptr ? RowSteps() : RowSteps(order->steps);
  const RowsOfReferences rows(bases_.references);
  const NeighbourPlan::Rows neighbours_there(plan_, planned);
  const OrderedNeighbours neighbours(neighbours_there, order.get());
  record.encoded = EncodeFirst(head, coded, rows, neighbours, steps, scratch.codec);
  const std::span<std::byte> apart =
      TryHeadsApart(head, raw, options_.effort, scratch.codec, record.encoded);
  if (!apart.empty()) {
    raw = coded = apart;
    head.raw_hash = Hash64(raw);
  }
  TryNeighbours(head, coded, neighbours, steps, scratch.codec, record.encoded);
  head.codec = static_cast<uint8_t>(record.encoded.codec);
  if (options_.check) {
    CheckAgainstSource(head, record.encoded, raw, order.get(), rows, neighbours, scratch);
  }
  record.payload_hash = Hash64(record.encoded.payload);
  ByteWriter bytes;
  AppendHead(head, bytes);
  record.start = RecordStart(RecordType::kChunk, tag, bytes.bytes(), record.encoded.payload.size(),
                             record.payload_hash);
  return record;
}

}  // namespace kv::kvz
