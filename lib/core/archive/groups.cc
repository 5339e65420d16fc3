// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/groups.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kv {

GroupLayout::GroupLayout(const FileGroup& group, std::vector<uint64_t> sizes)
    : cuts_(group.cuts), sizes_(std::move(sizes)) {
  for (const uint64_t size : sizes_) {
    begins_.push_back(bytes_);
    bytes_ += size;
  }
}

uint64_t GroupLayout::JoinedOffset(size_t place, uint64_t file_offset) const {
  if (cuts_.empty()) return begins_[place] + file_offset;
  const auto column = static_cast<size_t>(
      std::upper_bound(cuts_.begin(), cuts_.end(), file_offset) - cuts_.begin());
  const uint64_t begin = ColumnBegin(column), width = ColumnEnd(column) - begin;
  return begin * sizes_.size() + place * width + file_offset - begin;
}

void GroupLayout::ForEachPiece(uint64_t begin, uint64_t bytes,
                               const std::function<void(const Piece&)>& take) const {
  const uint64_t end = std::min(begin + bytes, bytes_);
  while (begin < end) {
    Piece piece{.joined_offset = begin};
    uint64_t left = 0;  // of the file's part that the byte lies in
    if (cuts_.empty()) {
      const auto after = std::upper_bound(begins_.begin(), begins_.end(), begin);
      piece.place = static_cast<size_t>(after - begins_.begin()) - 1;
      piece.file_offset = begin - begins_[piece.place];
      left = sizes_[piece.place] - piece.file_offset;
    } else {
      const uint64_t files = sizes_.size();
      const auto column = static_cast<size_t>(
          std::upper_bound(cuts_.begin(), cuts_.end(), begin / files) - cuts_.begin());
      const uint64_t column_begin = ColumnBegin(column), width = ColumnEnd(column) - column_begin,
                     within = begin - column_begin * files;
      piece.place = within / width;
      piece.file_offset = column_begin + within % width;
      left = width - within % width;
    }
    piece.bytes = std::min(left, end - begin);
    begin += piece.bytes;
    take(piece);
  }
}

void GroupLayout::Join(size_t place, ByteSpan file, std::span<std::byte> joined) const {
  for (size_t column = 0; column <= cuts_.size(); ++column) {
    const uint64_t begin = ColumnBegin(column),
                   width = cuts_.empty() ? file.size() : ColumnEnd(column) - begin;
    if (width == 0) continue;
    std::memcpy(joined.data() + JoinedOffset(place, begin), file.data() + begin, width);
  }
}

void GroupLayout::Part(size_t place, ByteSpan joined, std::span<std::byte> file) const {
  for (size_t column = 0; column <= cuts_.size(); ++column) {
    const uint64_t begin = ColumnBegin(column),
                   width = cuts_.empty() ? file.size() : ColumnEnd(column) - begin;
    if (width == 0) continue;
    std::memcpy(file.data() + begin, joined.data() + JoinedOffset(place, begin), width);
  }
}

}  // namespace kv
