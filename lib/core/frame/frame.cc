// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/frame/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <mutex>

#include "lib/core/base/bytes.h"
#include "lib/core/codec/floor.h"
#include "lib/core/codec/profiled/profiled.h"
#include "lib/core/codec/wrappers/wrappers.h"

namespace kv {

template <typename F>
void FrameCoder::ForEachSegment(size_t count, const F& body) {
  const auto one = [&](uint64_t index) {
    if (state_ != nullptr) state_->StopIfCancelled();
    const Reuse<Worker>::Lease worker(workers_);
    body(static_cast<size_t>(index), *worker);
  };
  if (pool_ != nullptr && count > 1) {
    pool_->ParallelFor(count, one);
  } else {
    for (size_t index = 0; index < count; ++index) one(index);
  }
}

EncodedChunk FrameCoder::EncodeSegment(const FrameDescription& description, const ChunkShape& shape,
                                       ByteSpan raw, Sides sides, CodecScratch& scratch) const {
  if (blocks_) return EncodeChunkInBlocks(shape, raw, level_, scratch);
  const auto at_level = [&](const ChunkShape& inner, ByteSpan bytes) {
    return EncodeChunk(inner, bytes, level_, scratch);
  };
  const InnerEncoder encode = std::ref(at_level);  // by reference: pages allocate nothing
  if (profile_ != nullptr && sides == Sides::kTogether) {
    ProfilePlace place;
    if (description.role == FrameRole::kKey || description.role == FrameRole::kValue)
      place.is_value = description.role == FrameRole::kValue;
    return EncodeWithProfile(*profile_, place, shape, raw, level_, scratch, encode);
  }
  if (sides == Sides::kApart) {
    EncodedChunk apart = EncodeSplit(shape, raw, scratch, encode);
    if (apart.payload.size() < raw.size()) return apart;
    scratch.Recycle(std::move(apart.payload));
  }
  EncodedChunk together = encode(shape, raw);
  if (sides != Sides::kTry) return together;
  EncodedChunk apart = EncodeSplit(shape, raw, scratch, encode);
  if (apart.payload.size() < together.payload.size()) std::swap(apart, together);
  scratch.Recycle(std::move(apart.payload));
  return together;
}

FrameCoder::Sides FrameCoder::ChooseSides(const FrameDescription& description,
                                          const SegmentGrid& grid, ByteSpan raw) {
  if (blocks_ || description.role != FrameRole::kKeyAndValue || raw.empty() ||
      !CanSplit(grid.ShapeAt(0), grid.Size(0))) {
    return Sides::kTogether;
  }
  // A short frame is coded both ways; for a long one its first rows decide.
  constexpr uint64_t kShortFrame = 64 << 10;
  if (raw.size() <= kShortFrame || grid.row_bytes > kShortFrame) return Sides::kTry;
  const uint64_t rows = kShortFrame / grid.row_bytes;
  ChunkShape shape = grid.row;
  shape.tokens = rows;
  const ByteSpan sample = raw.first(rows * grid.row_bytes);
  const Reuse<Worker>::Lease worker(workers_);
  CodecScratch& scratch = (*worker).scratch;
  EncodedChunk together = EncodeChunk(shape, sample, level_, scratch);
  EncodedChunk apart = EncodeSplit(shape, sample, scratch, EncoderAt(level_, scratch));
  const bool pays = apart.payload.size() < together.payload.size();
  scratch.Recycle(std::move(together.payload));
  scratch.Recycle(std::move(apart.payload));
  return pays ? Sides::kApart : Sides::kTogether;
}

// Compares the output's size with the bytes of finished segments plus estimates of the others.
class FrameCoder::Budget {
 public:
  Budget(uint64_t room, std::vector<SegmentFloor>& floors) : room_(room), floors_(floors) {}

  // Samples every segment. Throws kCancelled if `state` requests it.
  void Begin(uint64_t fixed_bytes, const SegmentGrid& grid, ByteSpan raw, Effort level, bool beside,
             const CallState* state) {
    done_ = fixed_bytes;
    floors_.clear();
    for (size_t i = 0; i < grid.count; ++i) {
      if (state != nullptr) state->StopIfCancelled();
      const ByteSpan part = grid.Part(raw, i);
      // Zeros at the end take next to nothing, but samples of them raise the entropy of the others.
      const auto last =
          std::find_if(part.rbegin(), part.rend(), [](auto b) { return b != std::byte{0}; });
      const auto used = static_cast<uint64_t>(part.rend() - last);
      const uint64_t floor = EstimateFloor(grid.ShapeAt(i), part, level, beside);
      floors_.push_back({used == 0 || floor == 0 ? used : floor * used / part.size(), floor == 0});
      FindShare(i).left += floors_[i].bytes;
    }
  }
  // May be called from any thread.
  void Finish(size_t segment, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    FindShare(segment).coded += bytes;
    FindShare(segment).finished += floors_[segment].bytes;
    FindShare(segment).left -= floors_[segment].bytes;
    if (Estimate() > room_) over_.store(true, std::memory_order_relaxed);
  }
  bool is_over() const { return over_.load(std::memory_order_relaxed); }
  // Returns true if the frame can still fit; otherwise sets `needed` to more than the output's
  // size.
  bool Fits(uint64_t* needed) {
    const std::lock_guard lock(mutex_);
    const uint64_t estimate = Estimate();
    // Segments are skipped once the estimate is too large, so a later decrease of it has no effect.
    if (estimate <= room_ && !is_over()) return true;
    if (needed != nullptr) *needed = std::max(estimate, room_ + 1);
    return false;
  }

 private:
  // Segments of one kind. The rest is expected to exceed its floors as the finished ones did.
  struct Share {
    double coded = 0, finished = 0, left = 0;  // `finished` and `left` are sums of floors_
    double Left(double trust, double least) const {
      return left * (finished == 0 ? least : std::max(least, trust * coded / finished));
    }
  };
  Share& FindShare(size_t i) { return floors_[i].repeats ? repeating_ : estimated_; }
  uint64_t Estimate() const {
    // Trusts the ratio of finished segments a little less: these may be K and the others V.
    return done_ + static_cast<uint64_t>(estimated_.Left(0.95, 1) + repeating_.Left(0.5, 0));
  }

  const uint64_t room_;
  std::vector<SegmentFloor>& floors_;
  std::mutex mutex_;
  uint64_t done_ = 0;
  Share estimated_, repeating_;
  std::atomic<bool> over_{false};
};

uint64_t FrameCoder::Encode(const FrameDescription& description, ByteSpan raw,
                            std::span<std::byte> out, uint64_t* needed) {
  return EncodeInto(description, raw, out, nullptr, needed);
}

uint64_t FrameCoder::EncodeWithin(const FrameDescription& description, ByteSpan raw,
                                  std::span<std::byte> out, uint64_t* needed) {
  const uint64_t bound = FrameBound(raw.size());
  if (bound != 0 && out.size() >= bound) return Encode(description, raw, out, needed);
  Budget budget(out.size(), floors_);
  return EncodeInto(description, raw, out, &budget, needed);
}

namespace {

// Writes the payloads. If there are several, a table precedes them.
void WriteSegments(const SegmentGrid& grid, ByteSpan raw, std::span<const EncodedChunk> chunks,
                   std::byte* to) {
  for (size_t i = 0; grid.count > 1 && i < grid.count; ++i, to += kSegmentEntryBytes) {
    StoreLE<uint32_t>(to, static_cast<uint32_t>(chunks[i].payload.size()));
    StoreLE<uint32_t>(to + 4, static_cast<uint32_t>(chunks[i].codec));
    StoreLE<uint64_t>(to + 8, Hash64(raw.subspan(grid.Begin(i), grid.Size(i))));
  }
  for (const EncodedChunk& chunk : chunks) to = std::ranges::copy(chunk.payload, to).out;
}

}  // namespace

uint64_t FrameCoder::EncodeInto(const FrameDescription& description, ByteSpan raw,
                                std::span<std::byte> out, Budget* budget, uint64_t* needed) {
  FrameHeader header;
  header.level = level_;
  header.raw_bytes = raw.size();
  header.description = ShapeThatExplains(description, raw.size());
  const SegmentGrid grid = ChooseSegments(header);
  const uint64_t table_bytes = grid.count > 1 ? grid.count * kSegmentEntryBytes : 0;
  if (budget != nullptr) {
    budget->Begin(kFrameHeaderBytes + table_bytes, grid, raw, level_,
                  header.description.role == FrameRole::kKeyAndValue, state_);
    if (!budget->Fits(needed)) return 0;
  }
  encoded_.resize(grid.count);
  const Sides sides = ChooseSides(header.description, grid, raw);
  ForEachSegment(grid.count, [&](size_t index, Worker& worker) {
    if (budget != nullptr && budget->is_over()) return;
    worker.scratch.Recycle(std::move(encoded_[index].payload));
    encoded_[index] = EncodeSegment(header.description, grid.ShapeAt(index), grid.Part(raw, index),
                                    sides, worker.scratch);
    if (budget != nullptr) budget->Finish(index, encoded_[index].payload.size());
  });
  if (budget != nullptr && !budget->Fits(needed)) return 0;
  header.raw_hash = Hash128(raw);
  const bool profiled = std::ranges::any_of(
      encoded_, [](const EncodedChunk& chunk) { return chunk.codec == CodecId::kProfiled; });
  if (profiled) header.profile = profile_->hash();

  header.payload_bytes = table_bytes;
  for (const EncodedChunk& chunk : encoded_) header.payload_bytes += chunk.payload.size();
  const bool stored = header.payload_bytes >= raw.size();
  if (stored) {
    header.segmentation = Segmentation::kNone;
    header.segment_rows = 0;
    header.profile = {};
    header.payload_bytes = raw.size();
  } else if (blocks_ || grid.count == 1) {
    if (blocks_) header.version = kVersionOfBlocks;
    header.codec = encoded_[0].codec;
  }
  if (needed != nullptr) *needed = header.frame_bytes();
  if (out.size() < header.frame_bytes()) {
    if (budget != nullptr) return 0;
    throw Error(Finding::kOutputTooSmall, "the frame has {} bytes, the buffer has {}",
                header.frame_bytes(), out.size());
  }

  WriteFrameHeader(header, out.first<kFrameHeaderBytes>());
  if (stored) {
    std::ranges::copy(raw, out.data() + kFrameHeaderBytes);
  } else {
    WriteSegments(grid, raw, encoded_, out.data() + kFrameHeaderBytes);
  }
  return header.frame_bytes();
}

namespace {

FrameHeader ReadHeader(ByteSpan frame, const Hash128Bytes* context) {
  const FrameHeader header = ReadFrameHeader(frame);
  if (context == nullptr || *context == header.description.context) return header;
  throw Error(Finding::kContextDiffers, "the frame was encoded for another context");
}

void CheckHash(const Hash128Bytes& is, const FrameHeader& header) {
  if (is == header.raw_hash) return;
  throw Error(Finding::kChecksum, "the decoded bytes are not those that were encoded");
}

// Returns true if the frame is stored raw; such a frame may be larger than any segment.
bool IsStored(const FrameHeader& header) {
  return header.segmentation == Segmentation::kNone && header.codec == CodecId::kRaw;
}

}  // namespace

const Profile* FrameCoder::FindProfile(const FrameHeader& header) const {
  if (header.profile == Hash128Bytes{}) return nullptr;
  if (profile_ != nullptr && profile_->hash() == header.profile) return profile_.get();
  const std::string other = profile_ == nullptr
                                ? ""
                                : fmt::format("; '{}' is {}", Printable(profile_->name()),
                                              ProfileHashText(profile_->hash()));
  throw Error(Finding::kProfileMissing, "the frame needs the profile {}{}",
              ProfileHashText(header.profile), other)
      .Hint(
          "open the profile of that hash and give it to the context: kvt_profile_open, "
          "kvt_ctx_use_profile");
}

FrameHeader FrameCoder::Decode(ByteSpan frame, const Hash128Bytes* context,
                               std::span<std::byte> raw) {
  const FrameHeader header = ReadHeader(frame, context);
  if (raw.size() != header.raw_bytes) {
    throw Error(Finding::kSizeMismatch, "the frame holds {} bytes, the buffer has {}",
                header.raw_bytes, raw.size());
  }
  const Profile* profile = FindProfile(header);
  SegmentTable table = ReadSegments(header, frame, std::move(segments_));
  ForEachSegment(table.segments.size(), [&](size_t index, Worker& worker) {
    DecodeSegment(table, index, table.grid.Part(raw, index), worker.scratch, profile);
  });
  segments_ = std::move(table.segments);
  CheckHash(Hash128(raw), header);
  return header;
}

uint64_t FrameCoder::DecodeTokens(ByteSpan frame, const Hash128Bytes* context, uint64_t begin,
                                  uint64_t count, std::span<std::byte> out) {
  const FrameHeader header = ReadHeader(frame, context);
  const uint64_t tokens = header.description.tokens;
  if (header.segment_tokens() == 0) {
    throw Error(Finding::kUnsupportedKind,
                tokens == 0 ? "the frame does not say which bytes belong to which token"
                            : "the frame's order does not keep the bytes of a token together");
  }
  if (begin > tokens || count > tokens - begin) {
    throw Error(Finding::kBadArgument, "tokens {}:{} are out of range: the frame has {} tokens",
                begin, begin + count, tokens);
  }
  const uint64_t row = header.raw_bytes / tokens, first = begin * row, size = count * row;
  if (out.size() < size) {
    throw Error(Finding::kOutputTooSmall, "{} tokens take {} bytes, the buffer has {}", count, size,
                out.size());
  }
  DecodeRange(header, frame, first, out.first(size));
  return size;
}

uint64_t FrameCoder::DecodeHeads(ByteSpan frame, const Hash128Bytes* context, uint32_t begin,
                                 uint32_t count, std::span<std::byte> out) {
  const FrameHeader header = ReadHeader(frame, context);
  const FrameDescription& description = header.description;
  const uint64_t heads = description.heads, tokens = description.tokens;
  if (heads == 0 || tokens == 0)
    throw Error(Finding::kUnsupportedKind,
                "the frame does not say which bytes belong to which head");
  // The encoder never cuts rows apart; a forged header that claims so would lead outside the
  // segments.
  if (header.segmentation == Segmentation::kBytes && description.order == Order::kTokenHeadDim)
    throw Error(Finding::kUnsupportedKind, "the frame's segments hold no whole rows");
  if (begin > heads || count > heads - begin) {
    throw Error(Finding::kBadArgument, "heads {}:{} are out of range: the frame has {} heads",
                begin, uint64_t{begin} + count, heads);
  }
  const uint64_t head = header.raw_bytes / tokens / heads, part = count * head;
  const uint64_t size = tokens * part;
  if (out.size() < size) {
    throw Error(Finding::kOutputTooSmall, "{} heads take {} bytes, the buffer has {}", count, size,
                out.size());
  }
  if (description.order == Order::kHeadTokenDim) {
    DecodeRange(header, frame, begin * tokens * head, out.first(size));
    return size;
  }
  const Profile* profile = FindProfile(header);
  const SegmentTable table = ReadSegments(header, frame);
  const uint64_t row = table.grid.row_bytes;
  DecodeSegments(header, table, profile, 0, table.segments.size(), [&](size_t i, ByteSpan rows) {
    std::byte* to = out.data() + table.grid.Begin(i) / row * part;
    for (uint64_t at = 0; at < rows.size(); at += row, to += part)
      std::ranges::copy(rows.subspan(at + begin * head, part), to);
  });
  return size;
}

void FrameCoder::DecodeRange(const FrameHeader& header, ByteSpan frame, uint64_t first,
                             std::span<std::byte> out) {
  if (out.empty()) return;
  const Profile* profile = FindProfile(header);
  const SegmentTable table = ReadSegments(header, frame);
  const uint64_t step = table.grid.segment_bytes;
  DecodeSegments(header, table, profile, first / step, CeilDiv(first + out.size(), step),
                 [&](size_t index, ByteSpan whole) {
                   const uint64_t begin = table.grid.Begin(index);
                   const uint64_t from = std::max(first, begin);
                   const uint64_t to = std::min(first + out.size(), begin + whole.size());
                   std::ranges::copy(whole.subspan(from - begin, to - from),
                                     out.begin() + static_cast<std::ptrdiff_t>(from - first));
                 });
}

void FrameCoder::DecodeSegments(const FrameHeader& header, const SegmentTable& table,
                                const Profile* profile, size_t first, size_t end,
                                const std::function<void(size_t, ByteSpan)>& use) {
  if (IsStored(header)) {
    CheckHash(Hash128(table.segments[0].payload), header);
    return use(0, table.segments[0].payload);
  }
  ForEachSegment(end - first, [&](size_t number, Worker& worker) {
    const size_t index = first + number;
    worker.segment.resize(table.grid.Size(index));
    DecodeSegment(table, index, worker.segment, worker.scratch, profile);
    if (table.segments.size() == 1) CheckHash(Hash128(worker.segment), header);
    use(index, worker.segment);
  });
}

namespace {

// Returns the shape of a page as one segment.
ChunkShape ShapeOfPage(const FrameDescription& description, uint64_t raw_bytes) {
  if (raw_bytes > kMaxSegmentBytes) {
    throw Error(Finding::kLimit, "a page of {} bytes; pages of a table have at most {}", raw_bytes,
                kMaxSegmentBytes);
  }
  FrameHeader header;
  header.codec = CodecId::kBlocks;  // any but raw
  header.raw_bytes = raw_bytes;
  header.description = ShapeThatExplains(description, raw_bytes);
  return GridOfHeader(header).ShapeAt(0);
}

}  // namespace

bool FrameCoder::EncodePage(const FrameDescription& description, ByteSpan raw,
                            std::span<std::byte> out, PageEntry& entry) {
  const ChunkShape shape = ShapeOfPage(description, raw.size());
  const bool beside = !blocks_ && description.role == FrameRole::kKeyAndValue;
  const Sides sides = beside && CanSplit(shape, raw.size()) ? Sides::kTry : Sides::kTogether;
  const Reuse<Worker>::Lease worker(workers_);
  CodecScratch& scratch = (*worker).scratch;
  EncodedChunk chunk = EncodeSegment(description, shape, raw, sides, scratch);
  const bool stored = chunk.payload.size() >= raw.size();
  const ByteSpan payload = stored ? raw : ByteSpan(chunk.payload);
  entry = {static_cast<uint32_t>(payload.size()), stored ? CodecId::kRaw : chunk.codec,
           Hash64(raw)};
  const bool fits = payload.size() <= out.size();
  if (fits) std::ranges::copy(payload, out.begin());
  scratch.Recycle(std::move(chunk.payload));
  return fits;
}

void FrameCoder::DecodePage(const FrameDescription& description, const PageEntry& entry,
                            ByteSpan payload, std::span<std::byte> raw) {
  const ChunkShape shape = ShapeOfPage(description, raw.size());
  RequireCodec(entry.codec);
  if (payload.size() < entry.bytes) {
    throw Error(Finding::kTruncated, "the page has {} bytes, its entry says {}", payload.size(),
                entry.bytes);
  }
  const Reuse<Worker>::Lease worker(workers_);
  DecodeChunk(entry.codec, shape, payload.first(entry.bytes), raw, (*worker).scratch,
              {.profile = profile_.get()});
  if (Hash64(raw) != entry.raw_hash)
    throw Error(Finding::kChecksum, "the decoded page is not the one that was encoded");
}

FrameHeader FrameCoder::Verify(ByteSpan frame, const Hash128Bytes* context) {
  const FrameHeader header = ReadHeader(frame, context);
  const Profile* profile = FindProfile(header);
  const SegmentTable table = ReadSegments(header, frame);
  if (IsStored(header)) {
    CheckHash(Hash128(table.segments[0].payload), header);
    return header;
  }
  // Decodes as many segments at a time as there are threads, and hashes them in order.
  const size_t together = pool_ == nullptr ? 1 : static_cast<size_t>(pool_->threads());
  decoded_.resize(std::min(together, table.segments.size()));
  StreamingHash hash;
  for (size_t first = 0; first < table.segments.size(); first += together) {
    const size_t count = std::min(together, table.segments.size() - first);
    ForEachSegment(count, [&](size_t number, Worker& worker) {
      decoded_[number].resize(table.grid.Size(first + number));
      DecodeSegment(table, first + number, decoded_[number], worker.scratch, profile);
    });
    for (size_t number = 0; number < count; ++number) hash.Update(decoded_[number]);
  }
  CheckHash(hash.Digest128(), header);
  return header;
}

}  // namespace kv
