// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "formats/lmcache/memory_format.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/dtype.h"

namespace kv::lmcache {

// Engines have a handful: one for each shape of cache in a model.
inline constexpr size_t kMostGroups = 64;
inline constexpr uint64_t kGroupBytes = 20;

// What one group of layers with equal shapes holds: places of the shape that are not used are 0.
struct GroupShape {
  int32_t dtype = 0;
  std::array<int32_t, 4> shape = {};
};

// The header of a chunk: two numbers, then five for each group. How many groups follow is not in
// it; every count is tried, and at most one makes the size of the file.
struct ChunkHeader {
  int32_t length = 0, format = 0;
  std::vector<GroupShape> groups;

  uint64_t bytes() const { return 8 + kGroupBytes * groups.size(); }
};

// A group's values as one array, outermost axis first.
struct GroupArray {
  DType dtype = DType::kF16;
  std::string_view axes;  // letters as in formats/raw
  std::vector<uint64_t> shape;
  uint64_t bytes = 0;
};

// Nothing where type or shape are none that the layout can have, or too large for 64 bits.
std::optional<GroupArray> ArrayOf(const MemoryFormat& format, const GroupShape& group);
std::optional<DType> DTypeOf(int32_t number);
// Axes and extents of a shape in this layout; nothing where it is no such shape.
std::optional<GroupArray> ArrayOf(const MemoryFormat& format, DType dtype,
                                  std::span<const int64_t> shape);

// The header whose groups make the file exactly; otherwise the one with a single group, of which
// then something is wrong. Throws kTruncated.
ChunkHeader ParseChunkHeader(ByteSpan bytes);

}  // namespace kv::lmcache
