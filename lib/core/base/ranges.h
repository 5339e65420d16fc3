// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/core/base/bytes.h"

namespace kv {

// Reads ranges of bytes that lie elsewhere and do not change: on a server, behind a callback.
class RangeReader {
 public:
  virtual ~RangeReader() = default;
  virtual uint64_t size() const = 0;
  // Fills `to` with the bytes from `offset` on. Several threads may call it at once. Throws
  // kReadFailed, also if what is read has changed meanwhile.
  virtual void Read(uint64_t offset, std::span<std::byte> to) = 0;
};

// A file's bytes, brought in block by block and kept in an unnamed temporary file. What was not
// brought in reads as zeros. Threads may call Need at once.
class FetchedFile {
 public:
  static constexpr uint64_t kBlock = 16 << 10;
  // What one call of the reader brings at most, and how many run at once for one Need.
  static constexpr uint64_t kMostAtOnce = 8 << 20;
  static constexpr int kMostReads = 4;

  // Throws kWriteFailed if there is no room for a temporary file.
  explicit FetchedFile(std::unique_ptr<RangeReader> reader);
  ~FetchedFile();
  FetchedFile(const FetchedFile&) = delete;
  FetchedFile& operator=(const FetchedFile&) = delete;

  ByteSpan bytes() const { return bytes_; }
  // Returns when the range, cut to the file, is in bytes(). Throws what the reader throws, and
  // kWriteFailed if the temporary file cannot grow.
  void Need(uint64_t offset, uint64_t size);

 private:
  enum class State : uint8_t { kAbsent, kOnItsWay, kThere };
  struct Run {
    uint64_t first, last;  // blocks [first, last)
    bool settled = false;
  };
  // Runs that one call of Need fetches. Each is settled in the end, or others would wait for ever.
  struct Claimed {
    FetchedFile& file;
    std::vector<Run> runs = {};
    ~Claimed();
  };

  // Claims the absent blocks of [first, last) in runs of at most kMostAtOnce bytes.
  void Claim(uint64_t first, uint64_t last, std::vector<Run>& runs);
  void Fetch(const Run& run);
  void Settle(Run& run, State state);

  std::unique_ptr<RangeReader> reader_;
  int descriptor_ = -1;
  ByteSpan bytes_;
  std::mutex mutex_;
  std::condition_variable settled_;
  std::vector<State> blocks_;
};

}  // namespace kv
