// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/groups.h"

#include <algorithm>
#include <cstring>
#include <map>
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
    uint64_t left = 0;  // bytes from `begin` to the end of the file's part
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

// Chooses which files of a folder are coded together.

namespace {

// Size of a group, which is held in memory while it is written or restored; larger groups save
// nothing.
constexpr uint64_t kGroupTarget = 16 << 20;
// A file is joined only if it is smaller than the usual chunk divided by this.
constexpr uint64_t kSmallOneIn = 4;
constexpr size_t kMostFilesOfAGroup = 1 << 16;
constexpr size_t kMostCuts = 4096;

using RegionsOfFile = std::span<const Region>;

// Files with equal keys can be joined.
struct JoinKey {
  std::vector<uint64_t> numbers;
  auto operator<=>(const JoinKey&) const = default;
};

// Returns true if the file has only rows of one tensor. Such files can be joined at any length.
bool IsRowsAlone(RegionsOfFile regions, uint64_t size) {
  return regions.size() == 1 && regions[0].order == Order::kTokenHeadDim &&
         regions[0].offset == 0 && regions[0].size == size;
}

JoinKey MakeKey(RegionsOfFile regions, uint64_t size) {
  JoinKey key;
  if (regions.empty()) return key;
  const bool rows_alone = IsRowsAlone(regions, size);
  if (!rows_alone) key.numbers.push_back(size);
  for (const Region& region : regions) {
    for (const uint64_t number :
         {static_cast<uint64_t>(region.dtype), static_cast<uint64_t>(region.order),
          uint64_t{region.layer}, uint64_t{region.is_value}, uint64_t{region.heads},
          uint64_t{region.head_dim}, uint64_t{region.heads_known}}) {
      key.numbers.push_back(number);
    }
    if (rows_alone) continue;
    key.numbers.push_back(region.offset);
    key.numbers.push_back(region.size);
    key.numbers.push_back(region.tokens);
  }
  return key;
}

// Returns the offsets at which a file is cut, so that corresponding parts of all files lie
// together.
std::vector<uint64_t> FindCuts(RegionsOfFile regions, uint64_t size) {
  std::vector<uint64_t> cuts;
  if (regions.empty() || IsRowsAlone(regions, size)) return cuts;
  for (const Region& region : regions) {
    uint64_t parts = 1;
    if (region.order == Order::kHeadTokenDim) parts = region.heads;
    if (region.order == Order::kHeadDimToken)
      parts = uint64_t{region.heads} * region.head_dim / Info(region.dtype).block_elements;
    if (parts > kMostCuts || cuts.size() > kMostCuts) break;
    for (uint64_t part = 0; part <= parts; ++part)
      cuts.push_back(region.offset + region.size / parts * part);
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::erase_if(cuts, [&](uint64_t cut) { return cut == 0 || cut >= size; });
  return cuts;
}

// Returns true if the second file's rows directly follow the first one's in every tensor.
bool Follows(RegionsOfFile before, RegionsOfFile after) {
  for (size_t i = 0; i < after.size(); ++i) {
    if (after[i].order == Order::kStorage) continue;
    if (after[i].token_begin != before[i].token_begin + before[i].tokens) return false;
  }
  return true;
}

class Grouper {
 public:
  Grouper(const Source& source, const std::vector<Region>& regions, uint64_t chunk_bytes)
      : source_(source), regions_(regions), chunk_bytes_(chunk_bytes) {
    bounds_.resize(source.files.size() + 1);
    for (const Region& region : regions) ++bounds_[region.file + 1];
    for (size_t i = 1; i < bounds_.size(); ++i) bounds_[i] += bounds_[i - 1];
  }

  Grouping Run() {
    std::map<JoinKey, std::vector<uint32_t>> alike;
    for (uint32_t file = 0; file < source_.files.size(); ++file) {
      if (IsSmall(file)) alike[MakeKey(Of(file), FindSize(file))].push_back(file);
    }
    for (auto& [key, files] : alike) {
      std::ranges::stable_sort(files, {}, [&](uint32_t file) { return FirstToken(file); });
      Cut(files);
    }
    std::ranges::sort(result_.groups, {}, &FileGroup::first);
    Arrange();
    return std::move(result_);
  }

 private:
  RegionsOfFile Of(uint32_t file) const {
    return RegionsOfFile(regions_).subspan(bounds_[file], bounds_[file + 1] - bounds_[file]);
  }
  uint64_t FindSize(uint32_t file) const { return source_.files[file].data->size(); }
  uint64_t FirstToken(uint32_t file) const {
    for (const Region& region : Of(file)) {
      if (region.order != Order::kStorage) return region.token_begin;
    }
    return 0;
  }
  bool IsSmall(uint32_t file) const {
    const uint64_t size = FindSize(file), pieces = std::max<uint64_t>(1, Of(file).size());
    return size > 0 && size <= kGroupTarget / 2 && size / pieces < chunk_bytes_ / kSmallOneIn &&
           FindCuts(Of(file), size).size() <= kMostCuts;
  }

  // Cuts the files into runs whose tokens follow each other, none of them too long.
  void Cut(const std::vector<uint32_t>& files) {
    std::vector<uint32_t> run;
    uint64_t bytes = 0;
    const auto finish = [&] {
      if (run.size() > 1) result_.groups.push_back({run, FindCuts(Of(run[0]), FindSize(run[0]))});
      run.clear();
      bytes = 0;
    };
    for (const uint32_t file : files) {
      const bool goes_on = !run.empty() && Follows(Of(run.back()), Of(file)) &&
                           bytes + FindSize(file) <= kGroupTarget &&
                           run.size() < kMostFilesOfAGroup;
      if (!goes_on) finish();
      run.push_back(file);
      bytes += FindSize(file);
    }
    finish();
  }

  // Collects the regions of files that stand alone, and the joined ones.
  void Arrange() {
    std::vector<bool> grouped(source_.files.size());
    for (const FileGroup& group : result_.groups) {
      for (const uint32_t file : group.files) grouped[file] = true;
      AddJoined(group);
    }
    for (const Region& region : regions_) {
      if (!grouped[region.file]) result_.regions.push_back(region);
    }
    std::ranges::sort(result_.regions, {},
                      [](const Region& region) { return std::pair(region.file, region.offset); });
  }

  void AddJoined(const FileGroup& group) {
    const RegionsOfFile first = Of(group.first());
    for (size_t i = 0; i < first.size(); ++i) {
      Region joined = first[i];
      joined.offset = first[i].offset * group.files.size();
      joined.size = joined.tokens = 0;
      for (const uint32_t file : group.files) {
        joined.size += Of(file)[i].size;
        joined.tokens += Of(file)[i].tokens;
      }
      result_.regions.push_back(joined);
    }
  }

  const Source& source_;
  const std::vector<Region>& regions_;
  const uint64_t chunk_bytes_;
  std::vector<size_t> bounds_;  // range in `regions_` of each file
  Grouping result_;
};

}  // namespace

Grouping GroupFiles(const Source& source, const std::vector<Region>& regions,
                    uint64_t chunk_bytes) {
  if (!source.is_folder || source.files.size() < 2) return {{}, regions};
  return Grouper(source, regions, chunk_bytes).Run();
}

}  // namespace kv
