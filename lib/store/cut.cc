// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/store/cut.h"

#include <algorithm>
#include <cstring>

#include "lib/core/base/checked.h"
#include "lib/core/kernels/reorder.h"
#include "lib/core/snapshot/layout.h"

namespace kv::store {
namespace {

// Gaps of up to this size, such as row headers between tensors, are kept in the record.
constexpr uint64_t kMostOfLiteral = 128;
constexpr uint64_t kOpaqueBytes = 1 << 20, kMostOfPiece = 8 << 20;
constexpr uint64_t kGuideTokens = 16;

struct Steps {
  uint64_t token, head, unit;
};

Steps StepsIn(const Extent& extent, Order order) {
  const uint64_t unit = Info(extent.dtype).block_bytes, inner = extent.units * unit;
  switch (order) {
    case Order::kHeadTokenDim:
      return {inner, extent.tokens * inner, unit};
    case Order::kHeadDimToken:
      return {unit, extent.tokens * inner, extent.tokens * unit};
    default:
      return {extent.heads * inner, inner, unit};
  }
}

void Opaque(uint64_t bytes, DType dtype, std::vector<Extent>& extents) {
  if (bytes == 0) return;
  Extent extent;
  extent.kind = Extent::Kind::kOpaque;
  extent.dtype =
      IsBlockQuantised(dtype) || bytes % Info(dtype).block_bytes != 0 ? DType::kU8 : dtype;
  extent.bytes = bytes;
  extents.push_back(std::move(extent));
}

void Gap(ByteSpan bytes, std::vector<Extent>& extents) {
  if (bytes.size() > kMostOfLiteral) return Opaque(bytes.size(), DType::kU8, extents);
  if (bytes.empty()) return;
  Extent extent;
  extent.literal.assign(bytes.begin(), bytes.end());
  extents.push_back(std::move(extent));
}

void Tensor(const Region& region, std::vector<Extent>& extents) {
  Extent extent;
  extent.kind = Extent::Kind::kTensor;
  extent.dtype = region.dtype;
  extent.layer = region.layer;
  extent.is_value = region.is_value;
  extent.order = region.order;
  extent.token_begin = region.token_begin;
  extent.tokens = region.tokens;
  extent.heads = region.heads;
  extent.units = region.head_dim / Info(region.dtype).block_elements;
  const bool is_huge = extent.row_bytes() > kMostOfPiece ||
                       (region.order != Order::kTokenHeadDim && region.size > kMostOfTensor);
  if (region.order == Order::kStorage || is_huge) return Opaque(region.size, region.dtype, extents);
  KV_ASSERT(extent.size() == region.size);
  if (region.size > 0) extents.push_back(std::move(extent));
}

uint64_t BlockTokens(const Extent& extent, uint64_t block_tokens) {
  return std::clamp<uint64_t>(block_tokens, 1,
                              std::max<uint64_t>(1, kMostOfPiece / extent.row_bytes()));
}

}  // namespace

std::vector<StoredFile> ExtentsOf(const Source& source, const Snapshot* snapshot) {
  std::vector<Region> regions;
  if (snapshot != nullptr) regions = RegionsOf(*snapshot);
  std::vector<StoredFile> files;
  size_t next = 0;
  for (size_t i = 0; i < source.files.size(); ++i) {
    const SourceFile& from = source.files[i];
    StoredFile file;
    if (source.is_folder) file.name = from.name;
    file.size = from.data->size();
    file.executable = from.executable;
    const ByteSpan bytes = from.data->bytes();
    uint64_t position = 0;
    for (; next < regions.size() && regions[next].file == i; ++next) {
      const Region& region = regions[next];
      Gap(bytes.subspan(position, region.offset - position), file.extents);
      Tensor(region, file.extents);
      position = region.offset + region.size;
    }
    Gap(bytes.subspan(position), file.extents);
    files.push_back(std::move(file));
  }
  return files;
}

void GatherRows(const Extent& extent, ByteSpan bytes, uint64_t begin, uint64_t count,
                std::span<std::byte> rows) {
  const Steps from = StepsIn(extent, extent.order), to = StepsIn(extent, Order::kTokenHeadDim);
  const std::byte* first = bytes.data() + begin * from.token;
  if (extent.in_order()) {
    std::memcpy(rows.data(), first, rows.size());
    return;
  }
  for (uint32_t head = 0; head < extent.heads; ++head) {
    CopyStrided2D(first + head * from.head, from.token, from.unit, rows.data() + head * to.head,
                  to.token, to.unit, count, extent.units, Info(extent.dtype).block_bytes);
  }
}

void ScatterRows(const Extent& extent, ByteSpan rows, uint64_t begin, uint64_t count,
                 std::span<std::byte> bytes) {
  const Steps to = StepsIn(extent, extent.order), from = StepsIn(extent, Order::kTokenHeadDim);
  std::byte* first = bytes.data() + begin * to.token;
  for (uint32_t head = 0; head < extent.heads; ++head) {
    CopyStrided2D(rows.data() + head * from.head, from.token, from.unit, first + head * to.head,
                  to.token, to.unit, count, extent.units, Info(extent.dtype).block_bytes);
  }
}

uint64_t EndOfPiece(const Extent& extent, uint64_t begin, uint64_t block_tokens) {
  if (extent.kind == Extent::Kind::kOpaque) {
    return std::min(begin + kOpaqueBytes, extent.bytes);
  }
  const uint64_t block = BlockTokens(extent, block_tokens);
  const uint64_t least = std::min(kShortTokens, (block + 1) / 2);
  const uint64_t end = RoundUp(begin + least, block);
  return end + least > extent.tokens ? extent.tokens : end;
}

bool IsWorthKeeping(const Extent& extent, uint64_t begin, uint64_t count, uint64_t block_tokens) {
  const uint64_t block = BlockTokens(extent, block_tokens), end = begin + count;
  return count >= std::min(kShortTokens, (block + 1) / 2) || end == extent.tokens ||
         end % block == 0;
}

Guide GuideOf(const Source& source, const std::vector<StoredFile>& files) {
  Guide guide;
  ByteSpan bytes;
  for (size_t i = 0; i < files.size(); ++i) {
    uint64_t offset = 0;
    for (const Extent& extent : files[i].extents) {
      if (extent.kind == Extent::Kind::kTensor && extent.tokens >= kGuideTokens) {
        guide = {&files[i], &extent, offset, {}};
        bytes = source.files[i].data->bytes();
      }
      offset += extent.size();
    }
  }
  if (guide.extent == nullptr) return guide;
  const Extent& extent = *guide.extent;
  Bytes rows(kGuideTokens * extent.row_bytes());
  GatherRows(extent, bytes.subspan(guide.offset, extent.size()), 0, kGuideTokens, rows);
  guide.id = Blake2b256(rows);
  return guide;
}

}  // namespace kv::store
