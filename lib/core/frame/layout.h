// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/frame/frame.h"

// How a frame's bytes are laid out; for lib/core/frame alone.
namespace kv {

inline constexpr uint64_t kSegmentEntryBytes = 16;
// No coded segment is larger, so that a reader knows how much memory a claim may cost.
inline constexpr uint64_t kMaxSegmentBytes = uint64_t{4} << 20;

// The raw bytes cut into segments: all of `segment_bytes` but the last.
struct SegmentGrid {
  uint64_t raw_bytes = 0, segment_bytes = 0;
  uint64_t row_bytes = 0;  // 0: bytes without rows
  ChunkShape row;          // of one row
  size_t count = 1;

  uint64_t Begin(size_t index) const { return index * segment_bytes; }
  uint64_t Size(size_t index) const { return std::min(segment_bytes, raw_bytes - Begin(index)); }
  ChunkShape ShapeOf(size_t index) const;
};

// The description without a shape that does not multiply to `raw_bytes`, and without one whose rows
// are too long for a segment.
FrameDescription ShapeThatExplains(const FrameDescription& description, uint64_t raw_bytes);
// Sets the header's segmentation.
SegmentGrid ChooseSegments(FrameHeader& header);
// The grid of a header that was read. Throws kBadField where the header contradicts itself.
SegmentGrid GridOfHeader(const FrameHeader& header);

struct StoredSegment {
  CodecId codec = CodecId::kRaw;
  ByteSpan payload;
  uint64_t raw_hash = 0;  // of a frame with a table
};
struct SegmentTable {
  SegmentGrid grid;
  std::vector<StoredSegment> segments;
};
// Throws kTruncated, kBadFrame.
SegmentTable ReadSegments(const FrameHeader& header, ByteSpan frame);

// Decodes one segment into `raw`, which has its size, and checks its hash, where it has one of its
// own.
void DecodeSegment(const SegmentTable& table, size_t index, std::span<std::byte> raw,
                   CodecScratch& scratch);

void WriteFrameHeader(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> out);

}  // namespace kv
