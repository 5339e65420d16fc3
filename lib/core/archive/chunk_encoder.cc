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

// Chunks are predicted from neighbours if that saves at least one byte in this many.
constexpr uint64_t kLeastGainByLayers = 200;

// Guesses the element type of a small file that no reader knows: floats, if a sample compresses
// better as floats.
DType GuessType(ByteSpan raw, Effort effort, CodecScratch& scratch) {
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

// Target size of a shared extent. Extents are gathered and restored as a whole, so it bounds the
// memory that a transposed V takes on both sides, however long the context is.
constexpr uint64_t kExtentTarget = 16 << 20;

ChunkHead TensorHead(const Region& region, Effort effort) {
  ChunkHead head;
  head.file = static_cast<uint32_t>(region.file);
  head.layer = region.layer;
  head.kind = region.is_value ? ChunkKind::kValue : ChunkKind::kKey;
  head.dtype = region.dtype;
  const bool by_head = region.heads_known && effort == Effort::kCompat;
  head.order = by_head ? Order::kHeadTokenDim : Order::kTokenHeadDim;
  head.source_order = region.order;
  head.heads_known = region.heads_known;
  head.heads = region.heads;
  head.units = region.head_dim / Info(region.dtype).block_elements;
  head.unit_bytes = Info(region.dtype).block_bytes;
  return head;
}

// Cuts files, or groups of files, into chunks.
class Planner {
 public:
  Planner(std::span<const uint64_t> sizes, const std::vector<Region>& regions, uint64_t chunk_bytes,
          Effort effort, std::span<const uint64_t> cuts)
      : sizes_(sizes), regions_(regions), chunk_bytes_(chunk_bytes), effort_(effort), cuts_(cuts) {}

  std::vector<ChunkHead> Run() {
    auto region = regions_.begin();
    for (; file_ < sizes_.size(); ++file_, position_ = 0) {
      for (; region != regions_.end() && region->file == file_; ++region) {
        const uint64_t carried = region->order == Order::kStorage ? 0 : kMaxLeadBytes;
        if (position_ + carried < region->offset)
          PlanOpaque(region->offset - position_, DType::kU8);
        PlanRegion(*region);
      }
      if (position_ < sizes_[file_]) PlanOpaque(sizes_[file_] - position_, DType::kU8);
    }
    return std::move(chunks_);
  }

 private:
  // Plans bytes that belong to no tensor. `dtype` is the type of their elements.
  void PlanOpaque(uint64_t size, DType dtype) {
    if (IsBlockQuantised(dtype)) dtype = DType::kU8;
    const uint64_t unit = Info(dtype).block_bytes,
                   step = std::max(chunk_bytes_ / unit, uint64_t{1}) * unit;
    ForEachPiece(size, step, [&](uint64_t, uint64_t count) {
      ChunkHead head;
      head.file = static_cast<uint32_t>(file_);
      head.dtype = dtype;
      head.raw_bytes = head.extent_bytes = count;
      head.source_offset = position_;
      chunks_.push_back(head);
      position_ += count;
    });
  }

  void PlanRegion(const Region& region) {
    if (region.size == 0) return;
    const auto plan_elements = [&] {
      PlanOpaque(region.offset - position_, DType::kU8);
      PlanOpaque(region.size, region.dtype);
    };
    if (region.order == Order::kStorage) return plan_elements();
    const ChunkHead whole = TensorHead(region, effort_);
    const uint64_t unit_bytes = whole.unit_bytes;
    const uint64_t head_row = whole.units * unit_bytes;  // one token of one head
    const uint64_t row = head_row * whole.heads;         // one token
    KV_ASSERT(region.size == row * region.tokens);
    const uint64_t longest = region.order == Order::kTokenHeadDim   ? row
                             : region.order == Order::kHeadTokenDim ? head_row
                                                                    : region.tokens * unit_bytes;
    const uint64_t limit =
        region.order == Order::kHeadDimToken ? kMaxExtentBytes : kMaxChunkBytes / 2;
    if (longest > limit) return plan_elements();  // a single row is too long to be a unit of work
    const size_t planned = chunks_.size();
    if (region.order == Order::kTokenHeadDim) {
      PlanRows(region, whole);
    } else if (region.order == Order::kHeadTokenDim) {
      PlanHeads(region, whole);
    } else {
      PlanTransposed(region, whole);
    }
    chunks_[planned].lead.resize(region.offset - position_);
    position_ = region.offset + region.size;
  }

  void PlanRows(const Region& region, const ChunkHead& whole) {
    const uint64_t row = uint64_t{whole.units} * whole.unit_bytes * whole.heads;
    ForEachTokens(region, StepFor(row), [&](uint64_t token, uint64_t tokens) {
      ChunkHead head = whole;
      head.source_offset = region.offset + token * row;
      AddTokens(region, head, token, tokens);
    });
  }

  // Plans whole heads if several fit a chunk, otherwise token ranges of one head.
  void PlanHeads(const Region& region, const ChunkHead& whole) {
    const uint64_t head_row = uint64_t{whole.units} * whole.unit_bytes;
    const uint64_t head_bytes = head_row * region.tokens;
    const uint64_t together = cuts_.empty() ? StepFor(head_bytes) : 1;
    ForEachPiece(whole.heads, together, [&](uint64_t first, uint64_t heads) {
      ChunkHead part = whole;
      part.head_begin = static_cast<uint32_t>(first);
      part.heads = static_cast<uint32_t>(heads);
      const uint64_t begin = region.offset + first * head_bytes;
      const uint64_t step = heads > 1 ? region.tokens : StepFor(head_row);
      ForEachTokens(region, step, [&](uint64_t token, uint64_t tokens) {
        ChunkHead head = part;
        head.source_offset = begin + token * head_row;
        AddTokens(region, head, token, tokens);
      });
    });
  }

  // Plans extents of whole heads if several fit, otherwise of some channels of one head; within
  // each, ranges of tokens.
  void PlanTransposed(const Region& region, const ChunkHead& whole) {
    const uint64_t channel = region.tokens * whole.unit_bytes;
    const uint64_t head_bytes = whole.units * channel;
    ForEachPiece(whole.heads, std::max<uint64_t>(1, kExtentTarget / head_bytes),
                 [&](uint64_t first, uint64_t heads) {
                   ChunkHead part = whole;
                   part.head_begin = static_cast<uint32_t>(first);
                   part.heads = static_cast<uint32_t>(heads);
                   const uint64_t step =
                       heads > 1 ? whole.units : std::max<uint64_t>(1, kExtentTarget / channel);
                   ForEachPiece(whole.units, step, [&](uint64_t unit, uint64_t units) {
                     part.unit_begin = static_cast<uint32_t>(unit);
                     part.units = static_cast<uint32_t>(units);
                     part.source_offset = region.offset + first * head_bytes + unit * channel;
                     part.extent_tokens = region.tokens;
                     part.extent_bytes = heads * units * channel;
                     ForEachTokens(region, StepFor(heads * units * whole.unit_bytes),
                                   [&](uint64_t token, uint64_t tokens) {
                                     AddTokens(region, part, token, tokens);
                                   });
                   });
                 });
  }

  // Cuts the tokens of a region into pieces of `step`, also where a cut is.
  template <typename Body>
  void ForEachTokens(const Region& region, uint64_t step, const Body& body) const {
    if (cuts_.empty()) return ForEachPiece(region.tokens, step, body);
    for (uint64_t begin = 0; begin < region.tokens;) {
      const auto cut = std::upper_bound(cuts_.begin(), cuts_.end(), region.token_begin + begin);
      const uint64_t end =
          cut == cuts_.end() ? region.tokens : std::min(region.tokens, *cut - region.token_begin);
      ForEachPiece(end - begin, std::max(step, kStreamTokens),
                   [&](uint64_t token, uint64_t tokens) { body(begin + token, tokens); });
      begin = end;
    }
  }

  // Returns how many items of `bytes` make a chunk; at least 1.
  uint64_t StepFor(uint64_t bytes) const {
    return std::max<uint64_t>(1, chunk_bytes_ / std::max<uint64_t>(1, bytes));
  }

  void AddTokens(const Region& region, ChunkHead head, uint64_t token, uint64_t tokens) {
    head.token_begin = region.token_begin + token;
    head.tokens = tokens;
    head.raw_bytes = tokens * head.heads * head.units * head.unit_bytes;
    if (head.shares_extent()) {
      head.extent_token_begin = token;
    } else {
      head.extent_tokens = tokens;
      head.extent_bytes = head.raw_bytes;
    }
    chunks_.push_back(head);
  }

  const std::span<const uint64_t> sizes_;
  const std::vector<Region>& regions_;
  const uint64_t chunk_bytes_;
  const Effort effort_;
  const std::span<const uint64_t> cuts_;
  size_t file_ = 0;
  uint64_t position_ = 0;  // everything in the file before this is planned
  std::vector<ChunkHead> chunks_;
};

}  // namespace

std::vector<ChunkHead> PlanChunks(std::span<const uint64_t> sizes,
                                  const std::vector<Region>& regions, uint64_t chunk_bytes,
                                  Effort effort, std::span<const uint64_t> cuts) {
  return Planner(sizes, regions, chunk_bytes, effort, cuts).Run();
}

std::shared_ptr<const RowOrder> OrderFor(const ChunkHead& head, const RowOrders* orders,
                                         const Bases& bases, Effort effort) {
  if (orders == nullptr || head.kind == ChunkKind::kOpaque) return nullptr;
  const bool is_value = head.kind == ChunkKind::kValue;
  if (!bases.plan.ListRuns(head.layer, is_value, head.token_begin, head.tokens).empty())
    return nullptr;
  std::shared_ptr<const RowOrder> order = orders->Of(head.layer, head.token_begin, head.tokens);
  return order != nullptr && WantsOrder(head, *order, effort) ? order : nullptr;
}

BesideNeighbours ChunkEncoder::NeighboursBeside(const ChunkHead& head,
                                                std::span<const ReferenceRun> runs,
                                                const std::vector<Neighbour>& neighbours,
                                                const NeighbourSource& source) const {
  BesideNeighbours beside{.all = {},
                          .position_shifts = {},
                          .source = source,
                          .is_value = head.kind == ChunkKind::kValue};
  const auto runs_of = [&](uint32_t layer, bool is_value) {
    return bases_.plan.ListRuns(layer, is_value, head.token_begin, head.tokens);
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
  for (const ReferenceRun& run : runs_of(head.layer, false))
    beside.position_shifts.push_back(run.position_shift);
  return beside;
}

EncodedChunk ChunkEncoder::EncodeFirst(ChunkHead& head, ByteSpan raw, const ReferenceRows& rows,
                                       const NeighbourSource& neighbours, const RowSteps& steps,
                                       CodecScratch& scratch) const {
  const InnerEncoder encode = EncoderAt(effort_, scratch, steps);
  if (head.kind == ChunkKind::kOpaque) return encode(head.shape(), raw);
  const bool is_value = head.kind == ChunkKind::kValue;
  const std::vector<ReferenceRun> runs =
      bases_.plan.ListRuns(head.layer, is_value, head.token_begin, head.tokens);
  if (!runs.empty()) {
    const NeighbourPlan::Choice choice = plan_.Of(head);
    const BesideNeighbours beside = NeighboursBeside(head, runs, choice.neighbours, neighbours);
    EncodedChunk chunk =
        EncodeByReference(head.shape(), raw, runs, bases_.plan.LayerRotation(head.layer), rows,
                          effort_, scratch, encode, &beside);
    if (chunk.codec == CodecId::kRefLayers) head.codec_parameter = choice.depth;
    return chunk;
  }
  if (profile_ == nullptr) return encode(head.shape(), raw);
  const ProfilePlace place{.layer = head.layer, .is_value = is_value};
  return EncodeWithProfile(*profile_, place, head.shape(), raw, effort_, scratch, encode);
}

void ChunkEncoder::TryNeighbours(ChunkHead& head, ByteSpan raw, const NeighbourSource& neighbours,
                                 uint64_t first_token, const RowSteps& steps, CodecScratch& scratch,
                                 EncodedChunk& chunk) const {
  if (HasReferences(chunk.codec)) return;
  const NeighbourPlan::Choice choice = plan_.Of(head);
  Bytes payload = scratch.NewPayload();
  const auto take = [&](CodecId codec) {
    std::swap(chunk.payload, payload);
    payload.clear();
    chunk.codec = codec;
    chunk.planes.clear();
    head.codec_parameter = choice.depth;
  };
  const uint64_t alone = chunk.payload.size();
  const uint32_t position = cells_ == nullptr ? static_cast<uint32_t>(first_token)
                                              : cells_->FindPosition(head.layer, first_token);
  if (choice.regression &&
      EncodeProfiledLayers(*profile_, *choice.regression, position, head.shape(), raw, neighbours,
                           alone - alone / kLeastGainByLayers, scratch, payload, steps)) {
    take(CodecId::kProfiledLayers);
  }
  // Weights that the chunk learns itself win where the profile is of other texts or another model.
  const bool profiled = chunk.codec == CodecId::kProfiledLayers;
  const uint64_t to_beat = profiled ? chunk.payload.size() : alone - alone / kLeastGainByLayers;
  if (!choice.neighbours.empty() &&
      EncodeByLayers(head.shape(), raw, head.kind == ChunkKind::kValue, choice.neighbours,
                     neighbours, to_beat, scratch, payload, steps)) {
    take(CodecId::kLayers);
  }
  scratch.Recycle(std::move(payload));
}

void ChunkEncoder::CheckAgainstSource(const ChunkHead& head, const EncodedChunk& encoded,
                                      ByteSpan raw, const RowOrder* order,
                                      const ReferenceRows& rows, const NeighbourSource& neighbours,
                                      Scratch& scratch) const {
  const std::span<std::byte> decoded = scratch.decoded.Get(raw.size()).first(raw.size());
  DecodeRows(encoded.codec, head, encoded.payload, order, decoded, scratch.codec,
             {.references = &rows, .neighbours = &neighbours, .profile = profile_.get()});
  if (std::memcmp(decoded.data(), raw.data(), raw.size()) != 0) {
    throw Error(Finding::kInternal, "a chunk does not decode to what was encoded")
        .In(Describe(head));
  }
}

bool ChunkEncoder::EncodeTransformed(ChunkHead& head, ByteSpan raw, Scratch& scratch,
                                     EncodedChunk& chunk) const {
  if (transformed_ == nullptr || head.kind == ChunkKind::kOpaque) return false;
  if (!transformed_->Encode(head, chunk.payload)) return false;
  chunk.codec = CodecId::kTransformed;
  if (!check_) return true;
  const std::span<std::byte> decoded = scratch.decoded.Get(raw.size()).first(raw.size());
  transformed_->Decode(head, decoded);
  if (std::memcmp(decoded.data(), raw.data(), raw.size()) != 0) {
    throw Error(Finding::kInternal, "a chunk does not decode to what was approximated")
        .In(Describe(head));
  }
  return true;
}

void ChunkEncoder::EncodeOrdinary(ChunkHead& head, const ChunkHead& planned,
                                  std::span<std::byte> raw, Scratch& scratch,
                                  EncodedChunk& chunk) const {
  const std::shared_ptr<const RowOrder> order = OrderFor(head, orders_, bases_, effort_);
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
  chunk = EncodeFirst(head, coded, rows, neighbours, steps, scratch.codec);
  const std::span<std::byte> apart = TryHeadsApart(head, raw, effort_, scratch.codec, chunk);
  if (!apart.empty()) {
    raw = coded = apart;
    head.raw_hash = Hash64(raw);
  }
  const uint64_t first_token = head.token_begin + (order == nullptr ? 0 : order->rows[0]);
  TryNeighbours(head, coded, neighbours, first_token, steps, scratch.codec, chunk);
  if (check_) CheckAgainstSource(head, chunk, raw, order.get(), rows, neighbours, scratch);
}

ChunkRecord ChunkEncoder::Encode(const ChunkHead& planned, ByteSpan source, bool is_joined,
                                 uint32_t tag) const {
  const Reuse<Scratch>::Lease lease(scratches_);
  Scratch& scratch = *lease;
  ChunkRecord record{.head = planned, .start = {}, .encoded = {}};
  ChunkHead& head = record.head;
  const ByteSpan extent = source.subspan(head.source_offset, head.extent_bytes);
  // Always copies: the file may be written to meanwhile, and encoders assume that bytes do not
  // change between two reads.
  std::span<std::byte> raw = scratch.raw.Get(head.raw_bytes).first(head.raw_bytes);
  if (IsStoredAsIs(head)) {
    std::memcpy(raw.data(), extent.data(), raw.size());
  } else {
    GatherChunk(head, extent, raw);
  }
  head.raw_hash = Hash64(raw);
  if (is_joined && head.kind == ChunkKind::kOpaque && head.dtype == DType::kU8)
    head.dtype = GuessType(raw, effort_, scratch.codec);
  if (!EncodeTransformed(head, raw, scratch, record.encoded))
    EncodeOrdinary(head, planned, raw, scratch, record.encoded);
  head.codec = static_cast<uint8_t>(record.encoded.codec);
  record.payload_hash = Hash64(record.encoded.payload);
  ByteWriter bytes;
  AppendHead(head, bytes);
  record.start = RecordStart(RecordType::kChunk, tag, bytes.bytes(), record.encoded.payload.size(),
                             record.payload_hash);
  return record;
}

}  // namespace kv::kvz
