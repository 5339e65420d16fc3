// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/core/base/bytes.h"
#include "lib/core/codec/planes/planes.h"

namespace kv {
namespace {

constexpr uint64_t kBlocksHeaderBytes = 16, kBlockEntryBytes = 8;
constexpr uint8_t kZstdBlocks = 1;  // number by which frames name the coder of their blocks

uint64_t AlignBlock(uint64_t offset) {
  return CeilDiv(offset, kPlaneBlockAlignment) * kPlaneBlockAlignment;
}

uint64_t BlocksOfPlane(uint64_t words) { return CeilDiv(words, kPlaneBlockBytes); }

// Appends the smallest of three forms: the plane itself, its literals and, at levels that search,
// its matches. Matches alone may be larger than literals.
void AppendBlock(ByteSpan plane, int zstd_level, CodecScratch& scratch, Bytes& out) {
  const size_t bound = Zstd::Bound(plane.size());
  ByteSpan block = plane;
  const auto keep = [&](ByteSpan frame) {
    if (!frame.empty() && frame.size() < block.size()) block = frame;
  };
  if (!LooksLikeNoise(plane)) {
    const std::span<std::byte> frame = scratch.candidate.Get(bound);
    keep(frame.first(scratch.zstd.CompressLiterals(plane, frame)));
  }
  if (zstd_level != kOnlyLiterals) {
    const std::span<std::byte> frame = scratch.best.Get(bound);
    keep(frame.first(scratch.zstd.Compress(plane, frame, zstd_level)));
  }
  out.insert(out.end(), block.begin(), block.end());
}

}  // namespace

void EncodeBlocks(DType dtype, ByteSpan raw, int zstd_level, CodecScratch& scratch, Bytes& out) {
  KV_ASSERT(out.empty() && !raw.empty() && raw.size() <= kMaxBlockedBytes);
  const WordPlanes split = ChoosePlanes(dtype, raw.size());
  const uint64_t words = raw.size() / split.count, count = split.count * BlocksOfPlane(words);
  const std::span<std::byte> planes = scratch.planes.Get(raw.size());
  SplitWords(split, raw, planes);
  out.resize(AlignBlock(kBlocksHeaderBytes + count * kBlockEntryBytes));
  out[0] = static_cast<std::byte>(split.count);
  out[1] = static_cast<std::byte>(split.rotated);
  out[2] = static_cast<std::byte>(kZstdBlocks);
  // The table of offsets and sizes is filled in as blocks are appended.
  StoreLE(out.data() + 4, kPlaneBlockBytes);
  StoreLE(out.data() + 8, static_cast<uint32_t>(count));
  uint64_t entry = kBlocksHeaderBytes;
  for (uint32_t plane = 0; plane < split.count; ++plane) {
    for (uint64_t at = 0; at < words; at += kPlaneBlockBytes, entry += kBlockEntryBytes) {
      const auto offset = static_cast<uint32_t>(out.size());
      AppendBlock(
          planes.subspan(plane * words + at, std::min<uint64_t>(kPlaneBlockBytes, words - at)),
          zstd_level, scratch, out);
      StoreLE(out.data() + entry, offset);
      StoreLE(out.data() + entry + 4, static_cast<uint32_t>(out.size() - offset));
      out.resize(AlignBlock(out.size()));
    }
  }
}

PlaneBlocks ReadBlocks(DType dtype, ByteSpan payload, uint64_t raw_bytes) {
  ByteReader reader(payload);
  PlaneBlocks found;
  found.split.count = reader.U8("number of planes");
  const uint8_t rotated = reader.U8("rotation"), coder = reader.U8("coder");
  const uint8_t reserved = reader.U8("reserved byte");
  const uint32_t block_bytes = reader.U32("size of a block"), count = reader.U32("blocks");
  if (rotated > 1 || coder != kZstdBlocks || reserved != 0 || block_bytes != kPlaneBlockBytes ||
      reader.U32("reserved number") != 0) {
    throw Error(Finding::kBadFrame, "a field of the header of the blocks has an invalid value")
        .At(0);
  }
  found.split.rotated = rotated != 0;
  if (found.split != ChoosePlanes(dtype, raw_bytes)) {
    throw Error(Finding::kBadFrame, "{} planes do not match {} bytes of {}", found.split.count,
                raw_bytes, Name(dtype))
        .At(0);
  }
  const uint64_t words = raw_bytes / found.split.count;
  if (raw_bytes == 0 || raw_bytes > kMaxBlockedBytes ||
      count != found.split.count * BlocksOfPlane(words)) {
    throw Error(Finding::kBadFrame, "{} blocks of {} planes cannot hold {} bytes", count,
                found.split.count, raw_bytes)
        .At(0);
  }
  // Sizes are checked before anything is allocated for them, since the payload is untrusted.
  ByteReader entries(reader.TakeArray(count, kBlockEntryBytes, "table of blocks"),
                     kBlocksHeaderBytes);
  const auto skip_padding = [&] {
    for (const std::byte byte : reader.Take(AlignBlock(reader.offset()) - reader.offset(), "gap")) {
      if (byte != std::byte{0})
        throw Error(Finding::kBadFrame, "a gap between blocks is not zero").At(reader.offset());
    }
  };
  skip_padding();
  found.blocks.reserve(count);
  for (uint32_t plane = 0; plane < found.split.count; ++plane) {
    for (uint64_t at = 0; at < words; at += kPlaneBlockBytes) {
      PlaneBlock block{entries.U32("offset of a block"), entries.U32("size of a block"),
                       static_cast<uint32_t>(std::min<uint64_t>(kPlaneBlockBytes, words - at))};
      if (block.offset != reader.offset() || block.bytes > block.raw_bytes) {
        throw Error(Finding::kBadFrame, "block {} does not lie where the blocks before it end",
                    found.blocks.size())
            .At(entries.offset() - kBlockEntryBytes);
      }
      const ByteSpan bytes = reader.Take(block.bytes, "block");
      skip_padding();
      // A device reads content sizes from the frames' headers, so these must be right.
      if (!block.stored() && !Zstd::IsOneFrame(bytes, block.raw_bytes)) {
        throw Error(Finding::kBadPayload, "block {} is not one zstd frame that states {} bytes",
                    found.blocks.size(), block.raw_bytes)
            .At(block.offset);
      }
      found.blocks.push_back(block);
    }
  }
  reader.ExpectEnd("the last block");
  return found;
}

void DecodeBlocks(DType dtype, ByteSpan payload, std::span<std::byte> raw, CodecScratch& scratch) {
  const PlaneBlocks found = ReadBlocks(dtype, payload, raw.size());
  const std::span<std::byte> planes = found.split.count == 1 ? raw : scratch.planes.Get(raw.size());
  std::byte* to = planes.data();
  for (const PlaneBlock& block : found.blocks) {
    const ByteSpan bytes = payload.subspan(block.offset, block.bytes);
    if (block.stored()) {
      std::ranges::copy(bytes, to);
    } else if (!scratch.zstd.Decompress(bytes, {to, block.raw_bytes})) {
      throw Error(Finding::kBadPayload, "the zstd frame of {} bytes does not decode to {} bytes",
                  block.bytes, block.raw_bytes)
          .At(block.offset);
    }
    to += block.raw_bytes;
  }
  if (found.split.count > 1) JoinWords(found.split, planes, raw);
}

}  // namespace kv
