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

// One page, chunk or tensor of a KV cache, compressed in memory and self-contained: what an engine
// stores under one key. FORMAT.md is the grammar.
namespace kv {

// The figures that decoding a page needs besides its payload and description.
struct PageEntry {
  uint32_t bytes = 0;  // bytes of the payload
  CodecId codec = CodecId::kRaw;
  uint64_t raw_hash = 0;  // XXH3-64 of the raw bytes
};

// Predicted gain and cost of encoding, measured on a sample.
struct FrameRate {
  double ratio = 1;                               // raw bytes over frame bytes
  double encode_bytes_s = 0, decode_bytes_s = 0;  // per thread, measured on this machine
};

// Maximum length of a sample.
inline constexpr uint64_t kFrameSampleBytes = uint64_t{64} << 10;

// Encodes and decodes frames. One call at a time; the segments of a call run on the pool. The
// encoded bytes depend on the input, the description and the level, never on the threads.
class FrameCoder {
 public:
  explicit FrameCoder(Effort level) : level_(level) {}

  // Later calls throw kCancelled within one segment once `state` is cancelled. Borrowed.
  void UseState(const CallState* state) { state_ = state; }

  // Sets the threads for later calls; nullptr: only the calling thread. Borrowed.
  void UsePool(ThreadPool* pool) { pool_ = pool; }

  // Makes later calls encode frames for decoders on a device: byte planes in blocks (codec
  // kBlocks), even if a profile or other codecs were smaller. Decoding does not depend on it.
  void UseBlocks(bool blocks) { blocks_ = blocks; }
  bool uses_blocks() const { return blocks_; }

  // Uses `profile` for later calls, to encode and to decode frames that name it; nullptr removes
  // it.
  void UseProfile(std::shared_ptr<const Profile> profile) { profile_ = std::move(profile); }

  // Writes one frame to the front of `out` and returns its size. If `out` is too small, throws
  // kOutputTooSmall and sets `*needed`; `out` then holds garbage. A shape that does not explain
  // raw.size() is ignored.
  uint64_t Encode(const FrameDescription& description, ByteSpan raw, std::span<std::byte> out,
                  uint64_t* needed = nullptr);

  // Encodes into an output that may be too small: returns 0 as soon as samples, and then the
  // finished segments, show that the frame is not going to fit, and sets `*needed` to the estimate,
  // which is larger than the output. Otherwise writes the same bytes as Encode. Refuses almost no
  // frame that would fit; one that exceeds it by less than the estimate's error may take all the
  // work.
  uint64_t EncodeWithin(const FrameDescription& description, ByteSpan raw, std::span<std::byte> out,
                        uint64_t* needed = nullptr);

  // Decodes into `raw`. Ignores bytes after the frame. Throws what ReadFrameHeader throws, and
  // kContextDiffers if `context` is given and differs from the frame's, kProfileMissing if the
  // frame needs a profile that this coder does not have, kSizeMismatch if `raw` has another size,
  // kTruncated, kBadFrame, kBadPayload or kChecksum for damage.
  FrameHeader Decode(ByteSpan frame, const Hash128Bytes* context, std::span<std::byte> raw);

  // Decodes only tokens [begin, begin + count) and returns the bytes written to the front of `out`.
  // Checks the hashes of the segments that it reads. Throws kUnsupportedKind unless the header's
  // segment_tokens() allows it, or the frame is stored raw or has one segment.
  uint64_t DecodeTokens(ByteSpan frame, const Hash128Bytes* context, uint64_t begin, uint64_t count,
                        std::span<std::byte> out);

  // Decodes only heads [begin, begin + count) of every token, in the frame's order, and returns the
  // bytes written to the front of `out`. In the order head, token only the segments that contain
  // them are decoded, in the order token, head all are. Throws what DecodeTokens throws, and
  // kUnsupportedKind for frames without a shape.
  uint64_t DecodeHeads(ByteSpan frame, const Hash128Bytes* context, uint32_t begin, uint32_t count,
                       std::span<std::byte> out);

  // Encodes one page of a table whose entries are stored apart from the payloads: no header, one
  // segment. Returns false if `out` is too small; `entry.bytes` is then the required size. Throws
  // kLimit above kMaxSegmentBytes of raw bytes.
  bool EncodePage(const FrameDescription& description, ByteSpan raw, std::span<std::byte> out,
                  PageEntry& entry);
  // Decodes into `raw`. Throws kUnsupportedKind for a codec that this library does not have,
  // kTruncated for a payload shorter than its entry says, kBadFrame, kBadPayload, and kChecksum.
  void DecodePage(const FrameDescription& description, const PageEntry& entry, ByteSpan payload,
                  std::span<std::byte> raw);

  // Encodes and decodes a sample: whole rows from places spread over `raw` if it has rows,
  // otherwise bytes. A frame with repetitions over long distances becomes smaller than estimated.
  FrameRate Estimate(const FrameDescription& description, ByteSpan raw);

  // Decodes without an output; needs memory for one segment per thread.
  FrameHeader Verify(ByteSpan frame, const Hash128Bytes* context);

 private:
  struct Worker {
    CodecScratch scratch;
    Bytes segment;
  };
  // Predicts, while segments are being encoded, whether the frame will fit.
  class Budget;
  uint64_t EncodeInto(const FrameDescription& description, ByteSpan raw, std::span<std::byte> out,
                      Budget* budget, uint64_t* needed);
  // Coding of the halves of heads, K and V side by side: together, apart, or the smaller of both.
  enum class Sides { kTogether, kApart, kTry };
  Sides ChooseSides(const FrameDescription& description, const SegmentGrid& grid, ByteSpan raw);
  EncodedChunk EncodeSegment(const FrameDescription& description, const ChunkShape& shape,
                             ByteSpan raw, Sides sides, CodecScratch& scratch) const;
  // Decodes segments [first, end) and passes each to `use`, on any thread. A stored frame is one
  // segment.
  void DecodeSegments(const FrameHeader& header, const SegmentTable& table, const Profile* profile,
                      size_t first, size_t end, const std::function<void(size_t, ByteSpan)>& use);
  // Decodes the bytes [first, first + out.size()).
  void DecodeRange(const FrameHeader& header, ByteSpan frame, uint64_t first,
                   std::span<std::byte> out);
  // Returns the profile that decoding the frame needs; nullptr if none.
  const Profile* FindProfile(const FrameHeader& header) const;
  template <typename F>  // not a std::function, which would allocate
  void ForEachSegment(size_t count, const F& body);

  Effort level_;
  bool blocks_ = false;
  ThreadPool* pool_ = nullptr;
  std::shared_ptr<const Profile> profile_;
  const CallState* state_ = nullptr;
  Reuse<Worker> workers_;
  // State of the running call, kept so that the next call reuses its memory.
  std::vector<EncodedChunk> encoded_;
  std::vector<SegmentFloor> floors_;
  std::vector<Bytes> decoded_;
  std::vector<StoredSegment> segments_;
};

// Returns the maximum memory that one FrameCoder takes on `threads` threads for calls of up to
// `raw_bytes`. Saturates.
uint64_t FrameCoderBytes(Effort level, uint64_t raw_bytes, uint64_t threads);

}  // namespace kv
