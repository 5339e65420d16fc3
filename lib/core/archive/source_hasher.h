// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "lib/core/archive/archive.h"
#include "lib/core/base/hash.h"

namespace kv::kvz {

// Hashes a source in order, reading ahead of the workers that gather from the same pages. Files of
// groups are hashed where they are joined.
class SourceHasher {
 public:
  SourceHasher(const Source& source, const std::vector<FileGroup>& groups)
      : source_(source), hashes_(source.files.size()), grouped_(source.files.size()) {
    for (const FileGroup& group : groups) {
      for (const uint32_t file : group.files) grouped_[file] = true;
    }
  }

  void HashOne(uint32_t file, ByteSpan bytes) { hashes_[file] = Hash64(bytes); }

  // Up to `end` in `file`; files are visited in order.
  void Advance(uint32_t file, uint64_t end) {
    while (file_ < file) FinishFile();
    if (end <= position_) return;
    hash_.Update(source_.files[file_].data->bytes().subspan(position_, end - position_));
    position_ = end;
  }
  // Hashes of the files, once everything was visited.
  const std::vector<uint64_t>& Finish() {
    while (file_ < hashes_.size()) FinishFile();
    return hashes_;
  }

 private:
  void FinishFile() {
    if (grouped_[file_]) {
      ++file_;
      return;
    }
    KV_ASSERT(position_ == source_.files[file_].data->size());
    hashes_[file_++] = hash_.Digest();
    hash_ = StreamingHash();
    position_ = 0;
  }

  const Source& source_;
  StreamingHash hash_;
  std::vector<uint64_t> hashes_;
  std::vector<bool> grouped_;
  uint32_t file_ = 0;
  uint64_t position_ = 0;
};

}  // namespace kv::kvz
