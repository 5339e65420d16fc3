// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lib/core/base/file.h"
#include "lib/core/snapshot/layout.h"

// Groups of small files of a folder, which are coded together so that chunks span them (FORMAT.md,
// "Groups"). The writer chooses groups; readers only need their bounds.
namespace kv {

constexpr uint64_t kMostGroupBytes = uint64_t{64} << 20;
constexpr uint64_t kMostGroupCuts = uint64_t{1} << 16;

// Files whose bytes are joined. Without cuts they follow each other; with cuts all have the same
// size, and the joined bytes are the parts of all files before the first cut, then those up to the
// second, and so on.
struct FileGroup {
  std::vector<uint32_t> files;  // indices of the source's files, in the order of joining
  std::vector<uint64_t> cuts;   // ascending, within a file

  uint32_t first() const { return files.front(); }
  bool operator==(const FileGroup&) const = default;
};

// Maps between the bytes of a group's files and the joined bytes.
class GroupLayout {
 public:
  // sizes[i] is the size of the group's files[i].
  GroupLayout(const FileGroup& group, std::vector<uint64_t> sizes);

  uint64_t bytes() const { return bytes_; }
  uint64_t size_of(size_t place) const { return sizes_[place]; }

  struct Piece {
    size_t place = 0;  // index within the group
    uint64_t file_offset = 0, joined_offset = 0, bytes = 0;
  };
  // Calls `take` for the pieces of [begin, begin + bytes) of the joined bytes, in order. There may
  // be as many pieces as bytes, so no list of them is built.
  void ForEachPiece(uint64_t begin, uint64_t bytes,
                    const std::function<void(const Piece&)>& take) const;
  // Returns the joined offset of a byte of a file.
  uint64_t JoinedOffset(size_t place, uint64_t file_offset) const;

  // Copy a file's bytes into the joined ones, and back.
  void Join(size_t place, ByteSpan file, std::span<std::byte> joined) const;
  void Part(size_t place, ByteSpan joined, std::span<std::byte> file) const;

 private:
  uint64_t ColumnBegin(size_t column) const { return column == 0 ? 0 : cuts_[column - 1]; }
  uint64_t ColumnEnd(size_t column) const {
    return column == cuts_.size() ? sizes_[0] : cuts_[column];
  }
  std::vector<uint64_t> cuts_, sizes_;
  std::vector<uint64_t> begins_;  // joined offset of each file, if there are no cuts
  uint64_t bytes_ = 0;
};

// The groups of a folder, and all regions. A region of a group refers to the joined bytes and has
// the number of the group's first file.
struct Grouping {
  std::vector<FileGroup> groups;  // sorted by their first files
  std::vector<Region> regions;
};
// Joins files that are small compared with a chunk and have the same regions with consecutive
// tokens, or no regions at all.
Grouping GroupFiles(const Source& source, const std::vector<Region>& regions, uint64_t chunk_bytes);

}  // namespace kv
