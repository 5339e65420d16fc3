// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by frame.cc, estimate.cc

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lib/core/base/arena.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/codec/profiled/profile.h"
#include "lib/core/frame/layout.h"

// One page, chunk or tensor of a KV cache, compressed into memory and complete in itself: what an
// engine stores under a key of its own. FORMAT.md is the grammar.
namespace kv {

// Figures that decoding a page needs beside its payload and its description.
struct PageEntry {
  uint32_t bytes = 0;  // of the payload
  CodecId codec = CodecId::kRaw;
  uint64_t raw_hash = 0;  // XXH3-64 of the raw bytes
};

// What encoding is going to gain and cost, from a sample.
struct FrameRate {
  double ratio = 1;                               // raw bytes over frame bytes
  double encode_bytes_s = 0, decode_bytes_s = 0;  // of one thread, as measured here and now
};

// A sample is not longer than this.
inline constexpr uint64_t kFrameSampleBytes = uint64_t{64} << 10;

// Encodes and decodes frames. One call at a time; the segments of a call run on the pool. What an
// encoder writes depends on the bytes, the description and the level, never on the threads.
class FrameCoder {
 public:
  explicit FrameCoder(Effort level) : level_(level) {}

  // The calls that follow throw kCancelled within one segment once `state` is cancelled. Borrowed.
  void UseState(const CallState* state) { state_ = state; }

  // The threads of the calls that follow; null: the calling thread alone. Borrowed.
  void UsePool(ThreadPool* pool) { pool_ = pool; }

  // Encodes frames that a device decodes from now on: byte planes in blocks (codec kBlocks), also
  // where a profile or other codecs would make them smaller. Decoding needs no such call.
  void UseBlocks(bool blocks) { blocks_ = blocks; }
  bool uses_blocks() const { return blocks_; }

  // Encodes with the profile from now on, and decodes frames that name it. Null: without.
  void UseProfile(std::shared_ptr<const Profile> profile) { profile_ = std::move(profile); }

  // Writes one frame to the front of `out` and returns its size. Where `out` is too small, throws
  // kOutputTooSmall and sets `*needed`; then `out` holds garbage. A shape that does not explain
  // raw.size() is dropped.
  uint64_t Encode(const FrameDescription& description, ByteSpan raw, std::span<std::byte> out,
                  uint64_t* needed = nullptr);

  // Encode for rooms that may be too small: returns 0 as soon as samples, and then the segments
  // that are done, say that the frame is not going to fit, and sets `*needed` to the estimate,
  // which is larger than the room. Otherwise writes the bytes that Encode writes. Refuses hardly
  // any frame that would fit; one that misses the room by less than the estimate's margin may cost
  // the whole work.
  uint64_t EncodeWithin(const FrameDescription& description, ByteSpan raw, std::span<std::byte> out,
                        uint64_t* needed = nullptr);

  // Fills `raw`. Bytes after the frame are ignored. Throws as ReadFrameHeader does, and
  // kContextDiffers where `context` is given and is not the frame's, kProfileMissing where the
  // frame needs a profile that is not this coder's, kSizeMismatch where `raw` has
  // another size, kTruncated, kBadFrame, kBadPayload or kChecksum for damage.
  FrameHeader Decode(ByteSpan frame, const Hash128Bytes* context, std::span<std::byte> raw);

  // Decodes tokens [begin, begin + count) alone and returns the bytes written to the front of
  // `out`. Checks the hashes of the segments that it touches. Throws kUnsupportedKind unless the
  // header's segment_tokens() says that it can, or the frame is stored raw or has one segment.
  uint64_t DecodeTokens(ByteSpan frame, const Hash128Bytes* context, uint64_t begin, uint64_t count,
                        std::span<std::byte> out);

  // Decodes heads [begin, begin + count) of every token alone, in the frame's order, and returns
  // the bytes written to the front of `out`. In the order head, token only the segments that hold
  // them are decoded, in the order token, head all are. Throws as DecodeTokens, and
  // kUnsupportedKind for frames without a shape.
  uint64_t DecodeHeads(ByteSpan frame, const Hash128Bytes* context, uint32_t begin, uint32_t count,
                       std::span<std::byte> out);

  // One page of a table whose entries are kept apart from the payloads: no header, one segment.
  // Returns false where `out` is too small; then `entry.bytes` is what is needed. Throws kLimit
  // above kMaxSegmentBytes of raw bytes.
  bool EncodePage(const FrameDescription& description, ByteSpan raw, std::span<std::byte> out,
                  PageEntry& entry);
  // Fills `raw`. Throws kUnsupportedKind for a codec that this library does not have, kTruncated
  // for a payload that is shorter than its entry says, kBadFrame, kBadPayload, and kChecksum.
  void DecodePage(const FrameDescription& description, const PageEntry& entry, ByteSpan payload,
                  std::span<std::byte> raw);

  // Encodes and decodes a sample: whole rows from places that are spread over `raw`, where it has
  // rows, else bytes. A frame that resembles itself over long distances comes out smaller than
  // estimated.
  FrameRate Estimate(const FrameDescription& description, ByteSpan raw);

  // Decode without an output: needs memory for one segment per thread.
  FrameHeader Verify(ByteSpan frame, const Hash128Bytes* context);

 private:
  struct Worker {
    CodecScratch scratch;
    Bytes segment;
  };
  // Tells whether a frame is still likely to fit, as its segments are encoded.
  class Budget;
  uint64_t EncodeInto(const FrameDescription& description, ByteSpan raw, std::span<std::byte> out,
                      Budget* budget, uint64_t* needed);
  // Whether the halves of heads, K and V side by side, are coded apart.
  enum class Sides { kTogether, kApart, kTry };
  Sides ChooseSides(const FrameDescription& description, const SegmentGrid& grid, ByteSpan raw);
  EncodedChunk EncodeSegment(const FrameDescription& description, const ChunkShape& shape,
                             ByteSpan raw, Sides sides, CodecScratch& scratch) const;
  // Decodes segments [first, end) and hands each to `use`, on any thread. A frame that is stored is
  // one segment.
  void DecodeSegments(const FrameHeader& header, const SegmentTable& table, const Profile* profile,
                      size_t first, size_t end, const std::function<void(size_t, ByteSpan)>& use);
  // Decodes the bytes [first, first + out.size()).
  void DecodeRange(const FrameHeader& header, ByteSpan frame, uint64_t first,
                   std::span<std::byte> out);
  // What decoding the frame needs; null if nothing.
  const Profile* ProfileOf(const FrameHeader& header) const;
  template <typename F>  // not a std::function, which would allocate
  void ForEachSegment(size_t count, const F& body);

  Effort level_;
  bool blocks_ = false;
  ThreadPool* pool_ = nullptr;
  std::shared_ptr<const Profile> profile_;
  const CallState* state_ = nullptr;
  Reuse<Worker> workers_;
  // Of the running call; kept for their memory.
  std::vector<EncodedChunk> encoded_;
  std::vector<uint64_t> floors_;  // of the segments, in bytes
  std::vector<Bytes> decoded_;
  std::vector<StoredSegment> segments_;
};

// The most memory that one FrameCoder takes on `threads` threads for calls of up to `raw_bytes`.
// Saturates.
uint64_t FrameCoderBytes(Effort level, uint64_t raw_bytes, uint64_t threads);

}  // namespace kv
