// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <optional>
#include <string>

#include "formats/format.h"

namespace kv::lmcache {

// A raw-block device or file of LMCache: two checkpoints of the index, then slots of equal size
// with a chunk each. Grammar: FORMAT.md.
class BlockStore {
 public:
  struct Entry {
    uint64_t offset = 0, size = 0;  // offset and size of the values, in the file
    std::string format, dtype;      // LMCache's words; empty if the index lacks them
    std::vector<int64_t> shape;     // empty if the index lacks it
  };

  // Throws kChecksum if neither checkpoint is intact, kBadText, kBadField, kLimit.
  explicit BlockStore(Source source);

  // Returns the entries by key, without those whose slots hold other data by now.
  const std::map<std::string, Entry>& entries() const { return entries_; }
  size_t stale() const { return stale_; }
  // Returns the chunks as a folder of files named by their keys, for --order.
  Source Names() const;
  // Opens one chunk; the caller sets its source. Throws kUnsupportedKind, kSizeMismatch.
  Snapshot Open(const std::string& key, std::optional<uint64_t> batch) const;

  Source Release() { return std::move(source_); }

 private:
  Source source_;
  std::map<std::string, Entry> entries_;
  size_t stale_ = 0;
};

Confidence ProbeBlocks(const Source& source);
// Opens the only chunk of a store, or joins those of OpenOptions::order. Throws kUsage if there are
// several chunks and no order.
Snapshot OpenBlocks(Source source, const OpenOptions& options);

}  // namespace kv::lmcache
