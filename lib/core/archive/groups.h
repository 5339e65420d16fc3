// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lib/core/base/file.h"
#include "lib/core/snapshot/layout.h"

// Small files of a folder that are coded together, so that chunks span them (FORMAT.md, Groups).
// The choice of groups is the writer's; readers need their bounds.
namespace kv {

constexpr uint64_t kMostGroupBytes = uint64_t{64} << 20;
constexpr uint64_t kMostGroupCuts = uint64_t{1} << 16;

// Files whose bytes are joined. Without cuts they follow each other; with cuts all have one size,
// and the parts of all files before the first cut come first, then those up to the second.
struct FileGroup {
  std::vector<uint32_t> files;  // of the source, in the order in which they are joined
  std::vector<uint64_t> cuts;   // ascending, within a file

  uint32_t first() const { return files.front(); }
  bool operator==(const FileGroup&) const = default;
};

// Where the bytes of a group's files lie among the joined ones.
class GroupLayout {
 public:
  // sizes[i]: that of files[i] of the group.
  GroupLayout(const FileGroup& group, std::vector<uint64_t> sizes);

  uint64_t bytes() const { return bytes_; }
  uint64_t size_of(size_t place) const { return sizes_[place]; }

  struct Piece {
    size_t place = 0;  // in the group
    uint64_t file_offset = 0, joined_offset = 0, bytes = 0;
  };
  // The pieces of [begin, begin + bytes) of the joined bytes, in their order. There may be as many
  // as bytes, so they are given one by one.
  void ForEachPiece(uint64_t begin, uint64_t bytes,
                    const std::function<void(const Piece&)>& take) const;
  // The joined place of a byte of a file.
  uint64_t JoinedOffset(size_t place, uint64_t file_offset) const;

  // Copies a file's bytes to their places among the joined ones, and back.
  void Join(size_t place, ByteSpan file, std::span<std::byte> joined) const;
  void Part(size_t place, ByteSpan joined, std::span<std::byte> file) const;

 private:
  uint64_t ColumnBegin(size_t column) const { return column == 0 ? 0 : cuts_[column - 1]; }
  uint64_t ColumnEnd(size_t column) const {
    return column == cuts_.size() ? sizes_[0] : cuts_[column];
  }

  std::vector<uint64_t> cuts_, sizes_, begins_;  // begins: of files, where there are no cuts
  uint64_t bytes_ = 0;
};

// The groups of a folder, and the regions as they lie in files and in groups: those of a group are
// joined ones, in the file that the group lists first.
struct Grouping {
  std::vector<FileGroup> groups;  // by their first files, ascending
  std::vector<Region> regions;
};
// Joins files that are small beside a chunk where they are alike: the same regions, one after
// another in tokens, or no regions at all.
Grouping GroupFiles(const Source& source, const std::vector<Region>& regions, uint64_t chunk_bytes);

}  // namespace kv
