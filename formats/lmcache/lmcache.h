// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/format.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/dtype.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::lmcache {

// MemoryFormat describes one of LMCache's numbers for layouts.
struct MemoryFormat {
  int number;
  std::string_view name;  // LMCache's name
  std::string_view axes;  // outermost first, letters as in formats/raw; empty: no cache
};

// Finds a layout by number or by LMCache's name; null if there is none.
const MemoryFormat* FindMemoryFormat(int64_t number);
const MemoryFormat* FindMemoryFormat(std::string_view name);
// Returns `format`. Throws kUnsupportedKind if it does not hold K and V.
const MemoryFormat& CacheFormat(const MemoryFormat& format);
// Throws kBadField for numbers that LMCache does not have.
const MemoryFormat& GetMemoryFormat(int64_t number);
// Finds a layout by its number as text, as metadata has it.
const MemoryFormat& GetMemoryFormat(std::string_view number);

// Engines have a few groups, one for each shape of cache in a model.
inline constexpr size_t kMostGroups = 64;
inline constexpr uint64_t kGroupBytes = 20;

// One group of layers with equal shapes. Unused entries of the shape are 0.
struct GroupShape {
  int32_t dtype = 0;
  std::array<int32_t, 4> shape = {};
};

// The header of a chunk: two numbers, then five for each group. It does not record the number of
// groups; the parser tries every count, and at most one fits the size of the file.
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

// Returns nothing if the layout cannot have this type or shape, or if sizes exceed 64 bits.
std::optional<GroupArray> DescribeArray(const MemoryFormat& format, const GroupShape& group);
std::optional<DType> FindDType(int32_t number);
// Returns axes and extents of a shape in this layout; nothing if the shape does not fit it.
std::optional<GroupArray> DescribeArray(const MemoryFormat& format, DType dtype,
                                        std::span<const int64_t> shape);

// Returns the layers of a chunk, numbered consecutively; its groups are consecutive in `payload`.
// Throws kLimit, kSizeMismatch. The caller adds the source.
Snapshot SnapshotOfArrays(std::span<const GroupArray> groups, ByteSpan payload,
                          std::optional<uint64_t> batch);

// Chunks as LMCache's fs connector writes them (.data): a header, then one array for each group of
// layers. Grammar and what is refused: FORMAT.md.

Confidence ProbeChunk(const Source& source);
// Opens one chunk. Throws kTruncated, kBadField, kUnknownDtype, kSizeMismatch, kUnsupportedKind for
// chunks without K and V.
Snapshot OpenChunk(Source source, const OpenOptions& options);

// The fields of LMCache's keys, which name files and slots. '@' separates them.
//   in-process:    MODEL@WORLD@WORKER@HASH@DTYPE[@LAYER][@TAG%VALUE...]
//   multiprocess:  MODEL@0xRANK@GROUP@HASH[@SALT]
struct KeyName {
  std::string model;
  std::string hash;  // hex digits
  std::optional<DType> dtype;
  std::optional<uint32_t> layer;
  bool multiprocess = false;
  std::vector<std::pair<std::string, std::string>> facts;  // for `inspect`
};

// Returns nothing if the text is not a key.
std::optional<KeyName> ParseKeyName(std::string_view key);
// Parses a file's name, without folder and extension.
std::optional<KeyName> ParseKeyFileName(std::string_view file);

}  // namespace kv::lmcache
