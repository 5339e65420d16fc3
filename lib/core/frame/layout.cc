// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/frame/layout.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "lib/core/base/bytes.h"
#include "lib/core/codec/chunk.h"

namespace kv {
namespace {

// Large enough for the codecs to learn, small enough that several threads share one page; at 2 KiB
// per token, the 256 tokens of one layer that engines store together.
constexpr uint64_t kRowSegment = uint64_t{512} << 10;
constexpr uint64_t kMostSegmentRows = uint64_t{1} << 15;
constexpr auto kNoCodec = static_cast<CodecId>(255);  // codec in the header of a frame with a table
constexpr uint16_t kVersion = 1;

bool IsKnown(DType dtype) {
  return std::ranges::any_of(AllDTypes(),
                             [&](const DTypeInfo& info) { return info.dtype == dtype; });
}

// The shape of a row and the number of rows; nullopt if the description has no usable shape.
struct Rows {
  ChunkShape row;
  uint64_t count = 0, bytes = 0;
};
std::optional<Rows> DescribeRows(const FrameDescription& description, uint64_t raw_bytes) {
  const bool by_token = description.order == Order::kTokenHeadDim;
  if (!by_token && description.order != Order::kHeadTokenDim) return std::nullopt;
  const DTypeInfo& info = Info(description.dtype);
  const uint64_t units = description.head_dim / info.block_elements;
  if (units == 0 || description.head_dim % info.block_elements != 0 || description.heads == 0 ||
      description.tokens == 0) {
    return std::nullopt;
  }
  // Cannot overflow: two 32-bit factors, and the few bytes of a block.
  const uint64_t head_bytes = units * info.block_bytes;
  uint64_t token_bytes, all;
  if (__builtin_mul_overflow(head_bytes, description.heads, &token_bytes) ||
      __builtin_mul_overflow(token_bytes, description.tokens, &all) || all != raw_bytes) {
    return std::nullopt;
  }
  Rows rows;
  rows.row = {description.dtype, 1, by_token ? description.heads : 1, units, Order::kTokenHeadDim};
  rows.bytes = by_token ? token_bytes : head_bytes;
  rows.count = raw_bytes / rows.bytes;
  if (rows.bytes > kMaxSegmentBytes) return std::nullopt;
  return rows;
}

SegmentGrid MakeGrid(const FrameHeader& header, const std::optional<Rows>& rows) {
  SegmentGrid grid;
  grid.raw_bytes = grid.segment_bytes = header.raw_bytes;
  grid.row.dtype = header.description.dtype;
  grid.row.order = Order::kStorage;
  if (rows) {
    grid.row = rows->row;
    grid.row_bytes = rows->bytes;
  }
  if (header.segmentation == Segmentation::kNone) return grid;
  grid.segment_bytes = header.segmentation == Segmentation::kBytes
                           ? kByteSegment
                           : header.segment_rows * grid.row_bytes;
  grid.count = CeilDiv(grid.raw_bytes, grid.segment_bytes);
  return grid;
}

[[noreturn]] void Contradiction(std::string_view what) {
  throw Error(Finding::kBadField, std::string(what)).In("frame header");
}

}  // namespace

ChunkShape SegmentGrid::ShapeAt(size_t index) const {
  ChunkShape shape = row;
  if (row_bytes != 0) shape.tokens = Size(index) / row_bytes;
  return shape;
}

FrameDescription ShapeThatExplains(const FrameDescription& description, uint64_t raw_bytes) {
  FrameDescription kept = description;
  if (!DescribeRows(kept, raw_bytes)) {
    kept.order = Order::kStorage;
    kept.tokens = kept.heads = kept.head_dim = 0;
  }
  return kept;
}

SegmentGrid ChooseSegments(FrameHeader& header) {
  const std::optional<Rows> rows = DescribeRows(header.description, header.raw_bytes);
  const uint64_t target = rows ? kRowSegment : kByteSegment;
  // A last segment of less than half the size would be too short to learn from, so it joins the
  // previous one.
  if (header.raw_bytes > target + target / 2) {
    header.segmentation = rows ? Segmentation::kRows : Segmentation::kBytes;
    if (rows) {
      const uint64_t fit = std::bit_floor(std::max<uint64_t>(1, kRowSegment / rows->bytes));
      header.segment_rows = static_cast<uint16_t>(std::min(fit, kMostSegmentRows));
    }
  }
  const SegmentGrid grid = MakeGrid(header, rows);
  if (grid.count > 1 || header.segmentation == Segmentation::kNone) return grid;
  // A single long row.
  header.segmentation = Segmentation::kNone;
  header.segment_rows = 0;
  return MakeGrid(header, rows);
}

SegmentGrid GridOfHeader(const FrameHeader& header) {
  const FrameDescription& description = header.description;
  const std::optional<Rows> rows = DescribeRows(description, header.raw_bytes);
  const bool has_shape =
      description.heads != 0 || description.head_dim != 0 || description.tokens != 0;
  if (rows ? false : has_shape || description.order != Order::kStorage) {
    Contradiction("the product of the shape is not the raw size");
  }
  if ((header.segmentation == Segmentation::kRows) != (header.segment_rows != 0) ||
      (header.segmentation == Segmentation::kRows && !rows)) {
    Contradiction("the segments contradict the shape");
  }
  const SegmentGrid grid = MakeGrid(header, rows);
  const bool stored = header.segmentation == Segmentation::kNone && header.codec == CodecId::kRaw;
  if (!stored && grid.segment_bytes > kMaxSegmentBytes) Contradiction("a segment is too large");
  if (stored && header.payload_bytes != header.raw_bytes)
    Contradiction("an uncompressed payload does not have the raw size");
  if (header.segmentation != Segmentation::kNone && grid.count < 2)
    Contradiction("a segmented frame has fewer than two segments");
  return grid;
}

void RequireCodec(CodecId codec) {
  if (FindCodec(codec) != nullptr) return;
  throw Error(Finding::kUnsupportedKind,
              "the frame needs codec {}, which this version does not have",
              static_cast<unsigned>(codec));
}

SegmentTable ReadSegments(const FrameHeader& header, ByteSpan frame,
                          std::vector<StoredSegment> memory) {
  if (frame.size() - kFrameHeaderBytes < header.payload_bytes) {
    throw Error(Finding::kTruncated, "the frame has {} bytes of {}", frame.size(),
                header.frame_bytes());
  }
  ByteReader reader(frame.subspan(kFrameHeaderBytes, header.payload_bytes), kFrameHeaderBytes);
  SegmentTable table{GridOfHeader(header), std::move(memory)};
  table.segments.clear();
  if (header.segmentation == Segmentation::kNone) {
    RequireCodec(header.codec);
    table.segments.push_back({header.codec, reader.rest(), 0});
    return table;
  }
  // The table's presence is checked before anything is allocated for it.
  ByteReader entries(reader.TakeArray(table.grid.count, kSegmentEntryBytes, "segment table"),
                     kFrameHeaderBytes);
  table.segments.reserve(table.grid.count);
  for (size_t index = 0; index < table.grid.count; ++index) {
    const uint32_t size = entries.U32("segment size"), codec = entries.U32("segment codec");
    const uint64_t hash = entries.U64("segment hash");
    if (codec > 0xff)
      throw Error(Finding::kBadFrame, "there is no codec {}", codec).At(entries.offset() - 12);
    RequireCodec(static_cast<CodecId>(codec));
    if (header.version == kVersionOfBlocks && static_cast<CodecId>(codec) != header.codec)
      throw Error(Finding::kBadFrame, "segment {} has another codec than the header says", index)
          .At(entries.offset() - 12);
    table.segments.push_back({static_cast<CodecId>(codec), reader.Take(size, "segment"), hash});
  }
  reader.ExpectEnd("frame");
  return table;
}

std::vector<BlockSegment> ListBlocks(ByteSpan frame) {
  const FrameHeader header = ReadFrameHeader(frame);
  const SegmentTable table = ReadSegments(header, frame);
  std::vector<BlockSegment> segments;
  if (header.segmentation == Segmentation::kNone && header.codec == CodecId::kRaw) return segments;
  if (header.codec != CodecId::kBlocks)
    throw Error(Finding::kUnsupportedKind, "the frame is not in blocks: a device cannot decode it");
  for (size_t index = 0; index < table.segments.size(); ++index) {
    const ByteSpan payload = table.segments[index].payload;
    segments.push_back({table.grid.Begin(index), table.grid.Size(index),
                        static_cast<uint64_t>(payload.data() - frame.data()),
                        ReadBlocks(header.description.dtype, payload, table.grid.Size(index))});
  }
  return segments;
}

void DecodeSegment(const SegmentTable& table, size_t index, std::span<std::byte> raw,
                   CodecScratch& scratch, const Profile* profile) {
  const StoredSegment& segment = table.segments[index];
  DecodeChunk(segment.codec, table.grid.ShapeAt(index), segment.payload, raw, scratch,
              {.profile = profile});
  if (table.segments.size() > 1 && Hash64(raw) != segment.raw_hash) {
    throw Error(Finding::kChecksum, "segment {} is not what was encoded", index);
  }
}

// ---- the header ----

uint64_t FrameBound(uint64_t raw_bytes) {
  uint64_t bound;
  return __builtin_add_overflow(raw_bytes, kFrameHeaderBytes, &bound) ? 0 : bound;
}

uint64_t FrameHeader::segment_tokens() const {
  if (description.order != Order::kTokenHeadDim || segmentation == Segmentation::kBytes) return 0;
  return segmentation == Segmentation::kRows ? segment_rows : description.tokens;
}

namespace {

constexpr std::array<unsigned char, 8> kMagic = {0x89, 'K', 'V', 'F', '\r', '\n', 0x1a, '\n'};
enum Offset : size_t {
  kAtVersion = 8,
  kAtHeaderBytes = 10,
  kAtLevel = 12,
  kAtSegmentation = 13,
  kAtSegmentRows = 14,
  kAtRawBytes = 16,
  kAtPayloadBytes = 24,
  kAtRawHash = 32,
  kAtContext = 48,
  kAtProfile = 64,
  kAtReference = 80,
  kAtDType = 96,
  kAtOrder = 97,
  kAtRole = 98,
  kAtCodec = 99,
  kAtHeads = 100,
  kAtHeadDim = 104,
  kAtTag = 108,
  kAtTokens = 112,
  kAtHeaderHash = 120,
};

bool IsZero(ByteSpan bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

void WriteFrameHeader(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> out) {
  const FrameDescription& description = header.description;
  std::ranges::fill(out, std::byte{0});
  std::memcpy(out.data(), kMagic.data(), kMagic.size());
  StoreLE<uint16_t>(&out[kAtVersion], header.version);
  StoreLE<uint16_t>(&out[kAtHeaderBytes], kFrameHeaderBytes);
  out[kAtLevel] = static_cast<std::byte>(header.level);
  out[kAtSegmentation] = static_cast<std::byte>(header.segmentation);
  StoreLE<uint16_t>(&out[kAtSegmentRows], header.segment_rows);
  StoreLE<uint64_t>(&out[kAtRawBytes], header.raw_bytes);
  StoreLE<uint64_t>(&out[kAtPayloadBytes], header.payload_bytes);
  std::ranges::copy(header.raw_hash, &out[kAtRawHash]);
  std::ranges::copy(description.context, &out[kAtContext]);
  std::ranges::copy(header.profile, &out[kAtProfile]);
  out[kAtDType] = static_cast<std::byte>(description.dtype);
  out[kAtOrder] = static_cast<std::byte>(description.order);
  out[kAtRole] = static_cast<std::byte>(description.role);
  const bool many = header.version == kVersion && header.segmentation != Segmentation::kNone;
  out[kAtCodec] = static_cast<std::byte>(many ? kNoCodec : header.codec);
  StoreLE<uint32_t>(&out[kAtHeads], description.heads);
  StoreLE<uint32_t>(&out[kAtHeadDim], description.head_dim);
  StoreLE<uint32_t>(&out[kAtTag], description.tag);
  StoreLE<uint64_t>(&out[kAtTokens], description.tokens);
  StoreLE<uint64_t>(&out[kAtHeaderHash], Hash64(out.first<kAtHeaderHash>()));
}

FrameHeader ReadFrameHeader(ByteSpan frame) {
  if (frame.size() < kFrameHeaderBytes) {
    throw Error(Finding::kTruncated, "{} bytes are too few for a frame, whose header has {}",
                frame.size(), kFrameHeaderBytes);
  }
  const ByteSpan head = frame.first<kFrameHeaderBytes>();
  if (std::memcmp(head.data(), kMagic.data(), kMagic.size()) != 0) {
    throw Error(Finding::kBadMagic, "these bytes are not a frame");
  }
  // The hash has the same offset in every version, so that damage is not mistaken for a newer
  // version.
  if (LoadLE<uint64_t>(&head[kAtHeaderHash]) != Hash64(head.first(kAtHeaderHash))) {
    throw Error(Finding::kChecksum, "the frame's header is damaged");
  }
  const auto version = LoadLE<uint16_t>(&head[kAtVersion]);
  if (version != kVersion && version != kVersionOfBlocks) {
    throw Error(Finding::kUnsupportedVersion,
                "the frame has version {}; this library reads {} and {}", version, kVersion,
                kVersionOfBlocks);
  }
  if (LoadLE<uint16_t>(&head[kAtHeaderBytes]) != kFrameHeaderBytes) Contradiction("header size");
  if (!IsZero(head.subspan(kAtReference, 16)))
    throw Error(Finding::kUnsupportedKind, "the frame needs a reference");

  FrameHeader header;
  header.version = version;
  const auto byte_at = [&](size_t at) { return static_cast<uint8_t>(head[at]); };
  if (byte_at(kAtLevel) > static_cast<uint8_t>(Effort::kMax)) Contradiction("level");
  header.level = static_cast<Effort>(byte_at(kAtLevel));
  if (byte_at(kAtSegmentation) > static_cast<uint8_t>(Segmentation::kBytes)) {
    Contradiction("segmentation");
  }
  header.segmentation = static_cast<Segmentation>(byte_at(kAtSegmentation));
  header.segment_rows = LoadLE<uint16_t>(&head[kAtSegmentRows]);
  header.raw_bytes = LoadLE<uint64_t>(&head[kAtRawBytes]);
  header.payload_bytes = LoadLE<uint64_t>(&head[kAtPayloadBytes]);
  if (FrameBound(header.raw_bytes) == 0 || header.payload_bytes > header.raw_bytes) {
    Contradiction("payload size");
  }
  std::ranges::copy(head.subspan(kAtRawHash, 16), header.raw_hash.begin());
  std::ranges::copy(head.subspan(kAtProfile, 16), header.profile.begin());
  FrameDescription& description = header.description;
  std::ranges::copy(head.subspan(kAtContext, 16), description.context.begin());
  description.dtype = static_cast<DType>(byte_at(kAtDType));
  if (!IsKnown(description.dtype)) {
    throw Error(Finding::kUnknownDtype, "there is no element type {}", byte_at(kAtDType));
  }
  description.order = static_cast<Order>(byte_at(kAtOrder));
  if (byte_at(kAtRole) > static_cast<uint8_t>(FrameRole::kKeyAndValue)) Contradiction("role");
  description.role = static_cast<FrameRole>(byte_at(kAtRole));
  header.codec = static_cast<CodecId>(byte_at(kAtCodec));
  const bool many = version == kVersion && header.segmentation != Segmentation::kNone;
  if ((header.codec == kNoCodec) != many) Contradiction("codec");
  description.heads = LoadLE<uint32_t>(&head[kAtHeads]);
  description.head_dim = LoadLE<uint32_t>(&head[kAtHeadDim]);
  description.tag = LoadLE<uint32_t>(&head[kAtTag]);
  description.tokens = LoadLE<uint64_t>(&head[kAtTokens]);
  GridOfHeader(header);
  return header;
}

}  // namespace kv
