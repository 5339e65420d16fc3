// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lib/core/base/arena.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/codec/profiled/profile.h"

// One page, chunk or tensor of a KV cache, compressed into memory and complete in itself: what an
// engine stores under a key of its own. FORMAT.md is the grammar.
namespace kv {

struct SegmentGrid;

inline constexpr uint64_t kFrameHeaderBytes = 128;

// The values are stored in frames: never changed, never reused.
enum class FrameRole : uint8_t { kUnknown = 0, kKey = 1, kValue = 2, kKeyAndValue = 3 };

// What the bytes are. Only `context` is checked when a frame is decoded. Everything else helps the
// codec; a wrong shape costs compression, never correctness.
struct FrameDescription {
  DType dtype = DType::kU8;
  Order order = Order::kStorage;  // kStorage: not known
  FrameRole role = FrameRole::kUnknown;
  uint32_t heads = 0, head_dim = 0;  // head_dim in values, not in blocks
  uint64_t tokens = 0;
  uint32_t tag = 0;        // the caller's own
  Hash128Bytes context{};  // of the model, layer and tokens, as the caller hashes them

  bool operator==(const FrameDescription&) const = default;
};

// How the raw bytes are cut into segments, each of which is coded alone.
enum class Segmentation : uint8_t {
  kNone = 0,   // one segment
  kRows = 1,   // FrameHeader::segment_rows rows each
  kBytes = 2,  // kByteSegment bytes each
};
inline constexpr uint64_t kByteSegment = uint64_t{1} << 20;

struct FrameHeader {
  uint16_t version = 1;
  Effort level = Effort::kDefault;
  Segmentation segmentation = Segmentation::kNone;
  uint16_t segment_rows = 0;
  CodecId codec = CodecId::kRaw;  // of the only segment
  uint64_t raw_bytes = 0;
  uint64_t payload_bytes = 0;  // everything after the header, the segment table included
  Hash128Bytes raw_hash{};
  Hash128Bytes profile{};  // that decoding needs; zero: none
  FrameDescription description;

  uint64_t frame_bytes() const { return kFrameHeaderBytes + payload_bytes; }
  // Tokens that can be decoded without the others; 0 where only the whole can.
  uint64_t segment_tokens() const;
};

// The size that always suffices for `raw_bytes`; 0 if it overflows.
uint64_t FrameBound(uint64_t raw_bytes);

// Reads and checks a header from the first 128 bytes of a frame. Its sizes are claims until the
// frame was decoded. Throws kTruncated, kBadMagic, kUnsupportedVersion, kChecksum, kBadField, and
// kUnsupportedKind for a frame that needs a reference.
FrameHeader ReadFrameHeader(ByteSpan frame);

// Encodes and decodes frames. One call at a time; the segments of a call run on the pool. What an
// encoder writes depends on the bytes, the description and the level, never on the threads.
class FrameCoder {
 public:
  // A call of `state` that is cancelled throws kCancelled within one segment.
  explicit FrameCoder(Effort level, const CallState* state = nullptr)
      : level_(level), state_(state) {}

  // The threads of the calls that follow; null: the calling thread alone. Borrowed.
  void UsePool(ThreadPool* pool) { pool_ = pool; }

  // Encodes with the profile from now on, and decodes frames that name it. Null: without.
  void UseProfile(std::shared_ptr<const Profile> profile) { profile_ = std::move(profile); }

  // Writes one frame to the front of `out` and returns its size. Where `out` is too small, throws
  // kOutputTooSmall and sets `*needed`; then `out` holds garbage. A shape that does not explain
  // raw.size() is dropped.
  uint64_t Encode(const FrameDescription& description, ByteSpan raw, std::span<std::byte> out,
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

  // Decode without an output: needs memory for one segment per thread.
  FrameHeader Verify(ByteSpan frame, const Hash128Bytes* context);

 private:
  struct Worker {
    CodecScratch scratch;
    Bytes segment;
  };
  // Whether the halves of heads, K and V side by side, are coded apart.
  enum class Sides { kTogether, kApart, kTry };
  Sides ChooseSides(const FrameDescription& description, const SegmentGrid& grid, ByteSpan raw);
  EncodedChunk EncodeSegment(const FrameDescription& description, const ChunkShape& shape,
                             ByteSpan raw, Sides sides, CodecScratch& scratch) const;
  // What decoding the frame needs; null if nothing.
  const Profile* ProfileOf(const FrameHeader& header) const;
  void ForEachSegment(size_t count, const Profile* profile,
                      const std::function<void(size_t, Worker&)>& body);

  Effort level_;
  ThreadPool* pool_ = nullptr;
  std::shared_ptr<const Profile> profile_;
  const CallState* state_;
  Reuse<Worker> workers_;
  // Of the running call; kept for their memory.
  std::vector<EncodedChunk> encoded_;
  std::vector<Bytes> decoded_;
};

}  // namespace kv
