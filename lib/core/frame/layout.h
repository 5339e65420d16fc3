// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/base/hash.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/codec/planes/planes.h"

// The layout of a frame (FORMAT.md): its header and its segments. The latter are internal to
// lib/core/frame.
namespace kv {

inline constexpr uint64_t kFrameHeaderBytes = 128;
// Version of frames in which all segments use the codec that the header names.
inline constexpr uint16_t kVersionOfBlocks = 2;

// The values are stored in frames: never changed, never reused.
enum class FrameRole : uint8_t { kUnknown = 0, kKey = 1, kValue = 2, kKeyAndValue = 3 };

// Describes the bytes. Only `context` is checked when a frame is decoded. Everything else helps the
// codec; a wrong shape costs compression, never correctness.
struct FrameDescription {
  DType dtype = DType::kU8;
  Order order = Order::kStorage;  // kStorage: unknown
  FrameRole role = FrameRole::kUnknown;
  uint32_t heads = 0, head_dim = 0;  // head_dim in values, not in blocks
  uint64_t tokens = 0;
  uint32_t tag = 0;        // free for the caller
  Hash128Bytes context{};  // hash of model, layer and tokens, chosen by the caller
};

// The division of the raw bytes into segments, each of which is coded on its own.
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
  CodecId codec = CodecId::kRaw;  // codec of the only segment; in version 2 of all segments
  uint64_t raw_bytes = 0;
  uint64_t payload_bytes = 0;  // everything after the header, including the segment table
  Hash128Bytes raw_hash{};
  Hash128Bytes profile{};  // profile needed for decoding, or zero
  FrameDescription description;

  uint64_t frame_bytes() const { return kFrameHeaderBytes + payload_bytes; }
  // Returns the number of tokens that can be decoded at a time; 0 if only the whole frame can.
  uint64_t segment_tokens() const;
};

// Returns a size that suffices for any frame of `raw_bytes`; 0 if it overflows.
uint64_t FrameBound(uint64_t raw_bytes);

// Reads and checks a header from the first 128 bytes of a frame. Its sizes are only claims until
// the frame has been decoded. Throws kTruncated, kBadMagic, kUnsupportedVersion, kChecksum,
// kBadField, and kUnsupportedKind for a frame that needs a reference.
FrameHeader ReadFrameHeader(ByteSpan frame);

inline constexpr uint64_t kSegmentEntryBytes = 16;
// Maximum size of a coded segment, which bounds the memory that a forged header can cost.
inline constexpr uint64_t kMaxSegmentBytes = uint64_t{4} << 20;

// The division of the raw bytes into segments: all of `segment_bytes` except the last.
struct SegmentGrid {
  uint64_t raw_bytes = 0, segment_bytes = 0;
  uint64_t row_bytes = 0;  // 0 if the bytes have no rows
  ChunkShape row;          // of one row
  size_t count = 1;

  uint64_t Begin(size_t index) const { return index * segment_bytes; }
  uint64_t Size(size_t index) const { return std::min(segment_bytes, raw_bytes - Begin(index)); }
  auto Part(auto raw, size_t index) const { return raw.subspan(Begin(index), Size(index)); }
  ChunkShape ShapeAt(size_t index) const;
};

// Estimated minimum size of a segment; if its values repeat, its raw size without final zeros.
struct SegmentFloor {
  uint64_t bytes;
  bool repeats;
};

// Returns the description without its shape if that does not multiply to `raw_bytes`, or if its
// rows are too long for a segment.
FrameDescription ShapeThatExplains(const FrameDescription& description, uint64_t raw_bytes);
// Chooses the segments and sets the header's segmentation.
SegmentGrid ChooseSegments(FrameHeader& header);
// Returns the grid of a header that was read. Throws kBadField if the header contradicts itself.
SegmentGrid GridOfHeader(const FrameHeader& header);

struct StoredSegment {
  CodecId codec = CodecId::kRaw;
  ByteSpan payload;
  uint64_t raw_hash = 0;  // 0 in frames without a table of segments
};
struct SegmentTable {
  SegmentGrid grid;
  std::vector<StoredSegment> segments;
};
// Reads the segments; the list reuses `memory`. Throws kTruncated, kBadFrame.
SegmentTable ReadSegments(const FrameHeader& header, ByteSpan frame,
                          std::vector<StoredSegment> memory = {});

// A segment of a frame of kBlocks: `planes` byte planes, which together have the segment's size.
struct BlockSegment {
  uint64_t raw_offset = 0, raw_bytes = 0;
  uint64_t offset = 0;  // place in the frame, from which offsets of blocks count
  PlaneBlocks planes;
};
// Lists the blocks that a decoder on a device reads; none if the frame is stored raw. Throws what
// ReadFrameHeader and ReadSegments throw, and kUnsupportedKind for a frame of other codecs.
std::vector<BlockSegment> ListBlocks(ByteSpan frame);

// Throws kUnsupportedKind for a codec that this library does not have. It belongs to a newer
// version: the frame is intact, and its owner must not treat it as damaged.
void RequireCodec(CodecId codec);

// Decodes one segment into `raw`, which has its size, and checks its own hash, if it has one.
// `profile` is the one that the frame needs, or nullptr.
void DecodeSegment(const SegmentTable& table, size_t index, std::span<std::byte> raw,
                   CodecScratch& scratch, const Profile* profile);

void WriteFrameHeader(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> out);

}  // namespace kv
