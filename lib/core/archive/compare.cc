// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "lib/core/archive/archive.h"

namespace kv {

SourceComparer::SourceComparer(const Archive& archive, const Source& source)
    : archive_(archive), source_(source) {
  if (archive.is_folder() != source.is_folder) {
    throw Error(Finding::kContentDiffers, archive.is_folder()
                                              ? "the archive holds a folder, a file was given"
                                              : "the archive holds a file, a folder was given")
        .File(source.path);
  }
  for (const SourceFile& file : source.files) {
    if (archive.is_folder() &&
        !std::ranges::binary_search(archive.files(), file.name, {}, &ArchivedFile::name)) {
      differences_.push_back({file.name, "is not in the archive", 0, std::nullopt});
    }
  }
  CompareFolders();
}

void SourceComparer::CompareFolders() {
  const auto only_in = [&](const std::vector<std::string>& a, const std::vector<std::string>& b,
                           const char* text) {
    std::vector<std::string> names;
    std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(names));
    for (const std::string& name : names) differences_.push_back({name, text, 0, std::nullopt});
  };
  only_in(source_.empty_folders, archive_.empty_folders(),
          "is an empty folder that is not in the archive");
  only_in(archive_.empty_folders(), source_.empty_folders,
          "is an empty folder only in the archive");
}

Sink& SourceComparer::Begin(size_t file) {
  const ArchivedFile& archived = archive_.files()[file];
  const SourceFile* found = archive_.is_folder() ? source_.Find(archived.name) : &source_.files[0];
  if (archive_.is_folder() && found != nullptr && found->executable != archived.executable) {
    differences_.push_back({archived.name,
                            archived.executable ? "is not executable, but is so in the archive"
                                                : "is executable, but is not so in the archive",
                            0, std::nullopt});
  }
  other_ = found == nullptr ? nullptr : found->data.get();
  file_ = file;
  position_ = 0;
  if (other_ == nullptr) {
    differences_.push_back({archived.name, "is only in the archive", 0, std::nullopt});
  } else if (other_->size() != archived.size) {
    const uint64_t shorter = std::min(other_->size(), archived.size);
    differences_.push_back(
        {archived.name, fmt::format("has {} bytes, {} are archived", other_->size(), archived.size),
         shorter, std::nullopt});
  }
  return *this;
}

void SourceComparer::End(size_t) {}

void SourceComparer::Write(ByteSpan bytes) {
  if (other_ == nullptr) return;
  // An extent may come in one piece; the pages of the other side need not all be in memory for it.
  constexpr uint64_t kPiece = 1 << 20;
  for (uint64_t at = 0; at < bytes.size(); at += kPiece) {
    Compare(bytes.subspan(at, std::min<uint64_t>(kPiece, bytes.size() - at)));
  }
}

void SourceComparer::Compare(ByteSpan bytes) {
  const uint64_t size =
      std::min<uint64_t>(bytes.size(), other_->size() - std::min(position_, other_->size()));
  if (size > 0 && std::memcmp(bytes.data(), other_->bytes().data() + position_, size) != 0) {
    // Which chunks differ is looked for in steps: one finding per chunk, not per byte.
    constexpr uint64_t kStep = 256;
    for (uint64_t at = 0; at < size; at += kStep) {
      const uint64_t step = std::min(kStep, size - at);
      const std::byte* a = bytes.data() + at;
      const std::byte* b = other_->bytes().data() + position_ + at;
      if (std::memcmp(a, b, step) == 0) continue;
      for (uint64_t i = 0; i < step; ++i) {
        if (a[i] != b[i]) Mismatch(position_ + at + i);
      }
    }
  }
  if (size > 0) other_->Drop(position_, size);
  position_ += bytes.size();
}

void SourceComparer::Mismatch(uint64_t offset) {
  const auto file = static_cast<uint32_t>(file_);
  const ArchivedChunk* chunk = archive_.FindChunk(file, offset);
  if (!different_.insert(chunk).second) return;
  std::optional<ChunkHead> head;
  if (chunk != nullptr) head = chunk->head;
  differences_.push_back({archive_.files()[file_].name,
                          fmt::format("differs, first at byte {}", offset), offset, head});
}

}  // namespace kv
