// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <string>

#include "lib/core/base/file.h"

namespace kv {

// The bytes of a file of known size that are brought in, and given back, piece by piece. What was
// not brought in reads as zeros and takes no memory. Anonymous memory: no file system is involved.
class PartialFile {
 public:
  // Throws kNoMemory, also for a size that no memory could hold.
  PartialFile(uint64_t size, std::string name);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const std::shared_ptr<const FileSource>& source() const { return source_; }
  uint64_t size() const { return source_->size(); }
  // The same bytes, to write to.
  std::span<std::byte> Range(uint64_t offset, uint64_t size) { return all_.subspan(offset, size); }
  // Gives the memory of the whole pages in a range back; they read as zeros again.
  void Drop(uint64_t offset, uint64_t size);

 private:
  int descriptor_ = -1;
  std::span<std::byte> all_;
  std::shared_ptr<const FileSource> source_;
};

}  // namespace kv
