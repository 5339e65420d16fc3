// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/lmcache/chunk_header.h"

namespace kv::lmcache {
namespace {

struct DTypeNumber {
  int32_t number;
  DType dtype;
};
constexpr DTypeNumber kDTypes[] = {
    {1, DType::kF16}, {2, DType::kF16}, {3, DType::kBF16},   {4, DType::kF32},
    {5, DType::kF64}, {6, DType::kU8},  {7, DType::kF8E4M3}, {8, DType::kF8E5M2},
};

GroupShape ReadGroup(ByteReader& reader) {
  GroupShape group{.dtype = reader.I32("dtype"), .shape = {}};
  for (int32_t& extent : group.shape) extent = reader.I32("shape");
  return group;
}

}  // namespace

std::optional<DType> DTypeOf(int32_t number) {
  for (const DTypeNumber& entry : kDTypes) {
    if (entry.number == number) return entry.dtype;
  }
  return std::nullopt;
}

std::optional<GroupArray> ArrayOf(const MemoryFormat& format, DType dtype,
                                  std::span<const int64_t> shape) {
  GroupArray array{
      .dtype = dtype, .axes = format.axes, .shape = {}, .bytes = Info(dtype).block_bytes};
  if (array.axes.empty()) return std::nullopt;
  // Shapes are padded to four places, and latents of one layer group may lack the leading 1.
  size_t rank = shape.size();
  while (rank > 0 && shape[rank - 1] == 0) --rank;
  if (array.axes == "BLTC" && rank == 3) {
    array.axes = "LTC";
  } else if (rank == array.axes.size() + 1 && shape[rank - 1] == 1) {
    --rank;
  }
  if (rank != array.axes.size()) return std::nullopt;
  for (size_t i = 0; i < rank; ++i) {
    if (shape[i] <= 0) return std::nullopt;
    if ((array.axes[i] == '2' || array.axes[i] == 'B') && shape[i] > 2) return std::nullopt;
    array.shape.push_back(static_cast<uint64_t>(shape[i]));
    if (__builtin_mul_overflow(array.bytes, array.shape.back(), &array.bytes)) return std::nullopt;
  }
  // A group of latents beside groups of K and V has one plane, and the other way round.
  if (array.axes == "BLTC") array.axes = "2LTC";
  return array;
}

std::optional<GroupArray> ArrayOf(const MemoryFormat& format, const GroupShape& group) {
  const std::optional<DType> dtype = DTypeOf(group.dtype);
  if (!dtype) return std::nullopt;
  const std::array<int64_t, 4> shape = {group.shape[0], group.shape[1], group.shape[2],
                                        group.shape[3]};
  return ArrayOf(format, *dtype, shape);
}

ChunkHeader ParseChunkHeader(ByteSpan bytes) {
  ByteReader reader(bytes);
  ChunkHeader header;
  header.length = reader.I32("length");
  header.format = reader.I32("fmt");
  header.groups.push_back(ReadGroup(reader));
  const MemoryFormat* format = FindMemoryFormat(header.format);
  if (format == nullptr) return header;
  ChunkHeader attempt = header;
  uint64_t payload = 0;
  for (;;) {
    const std::optional<GroupArray> array = ArrayOf(*format, attempt.groups.back());
    if (!array || __builtin_add_overflow(payload, array->bytes, &payload)) return header;
    if (payload > bytes.size()) return header;
    if (attempt.bytes() + payload == bytes.size() && attempt.length >= 0 &&
        static_cast<uint64_t>(attempt.length) == payload) {
      return attempt;
    }
    if (attempt.groups.size() == kMostGroups || reader.remaining() < kGroupBytes) return header;
    attempt.groups.push_back(ReadGroup(reader));
  }
}

}  // namespace kv::lmcache
