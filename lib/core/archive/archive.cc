// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// What an open archive says of itself.
#include "lib/core/archive/archive.h"

#include <algorithm>

#include "lib/core/archive/records.h"

namespace kv {

Error Damage::AsError() const {
  Error error(finding, text);
  error.At(offset);
  error.In(chunk ? Describe(*chunk) : part);
  return error;
}

uint64_t Archive::source_bytes() const {
  uint64_t total = 0;
  for (const ArchivedFile& file : files_) total += file.size;
  return total;
}

uint64_t Archive::stored_bytes(ChunkKind kind) const {
  uint64_t total = 0;
  for (const ArchivedChunk& chunk : chunks_) {
    if (chunk.head.kind == kind) total += chunk.payload_bytes;
    if (kind == ChunkKind::kOpaque) total += chunk.head.lead.size();
  }
  return total;
}

uint64_t Archive::raw_bytes(ChunkKind kind) const {
  uint64_t total = 0;
  for (const ArchivedChunk& chunk : chunks_) {
    if (chunk.head.kind == kind) total += chunk.head.raw_bytes;
    if (kind == ChunkKind::kOpaque) total += chunk.head.lead.size();
  }
  return total;
}

uint64_t Archive::profiled_chunks() const {
  return static_cast<uint64_t>(
      std::count_if(chunks_.begin(), chunks_.end(), [](const ArchivedChunk& chunk) {
        return chunk.head.codec == static_cast<uint8_t>(CodecId::kProfiled);
      }));
}

uint64_t Archive::ordered_chunks() const {
  return static_cast<uint64_t>(
      std::count_if(chunks_.begin(), chunks_.end(),
                    [](const ArchivedChunk& chunk) { return chunk.head.by_cells; }));
}

void Archive::RequireProfile() const {
  if (profile_ != nullptr || profiled_chunks() == 0) return;
  if (profile_missing_) throw *profile_missing_;
  throw Error(Finding::kProfileMissing, "the archive needs the profile that it was coded with");
}

bool Archive::HoldsTensor(size_t layer_position, bool is_value) const {
  return holds_tensor_.at(layer_position)[is_value ? 1 : 0];
}

const FileGroup* Archive::GroupOf(uint32_t file) const {
  const auto at = grouped_.find(file);
  return at == grouped_.end() ? nullptr : &groups_[at->second.group];
}

const GroupLayout& Archive::LayoutOf(const FileGroup& group) const {
  return layouts_[static_cast<size_t>(&group - groups_.data())];
}

const ArchivedChunk* Archive::FindChunk(uint32_t file, uint64_t offset) const {
  if (const auto grouped = grouped_.find(file); grouped != grouped_.end()) {
    const FileGroup& group = groups_[grouped->second.group];
    offset = LayoutOf(group).JoinedOffset(grouped->second.place, offset);
    file = group.first();
  }
  auto at = std::upper_bound(chunks_.begin(), chunks_.end(), std::pair(file, offset),
                             [](const auto& place, const ArchivedChunk& chunk) {
                               return place < std::pair(chunk.head.file, chunk.head.source_offset);
                             });
  while (at != chunks_.begin()) {
    const ChunkHead& head = (--at)->head;
    if (head.file != file || offset >= head.source_offset + head.extent_bytes) return nullptr;
    if (!head.shares_extent()) return &*at;
    const uint64_t token = (offset - head.source_offset) / head.unit_bytes % head.extent_tokens;
    if (token >= head.extent_token_begin && token < head.extent_token_begin + head.tokens) {
      return &*at;
    }
  }
  return nullptr;
}

}  // namespace kv
