// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kv::corpus {

// Bytes that are appended and read back. Beyond `memory` they go to an unnamed file in TMPDIR.
class Spill {
 public:
  explicit Spill(size_t memory = size_t{1} << 20) : memory_(memory) {}
  ~Spill();
  Spill(const Spill&) = delete;
  Spill& operator=(const Spill&) = delete;

  // Throws kWriteFailed.
  void Append(std::string_view bytes);
  uint64_t size() const { return in_file_ + tail_.size(); }
  // Throws kReadFailed.
  void Read(uint64_t offset, char* to, size_t size) const;

 private:
  void Flush();

  const size_t memory_;
  int descriptor_ = -1;
  uint64_t in_file_ = 0;
  std::string tail_;  // bytes not yet in the file
};

// Reads a range of a spill in order.
class SpillReader {
 public:
  SpillReader(const Spill& spill, uint64_t begin, uint64_t end, size_t step = size_t{1} << 18)
      : spill_(&spill), next_(begin), end_(end), step_(step) {}

  bool more() const { return at_ < buffer_.size() || next_ < end_; }
  // Returns the next `size` bytes, valid until the next call. The range must have that many left.
  std::string_view Take(size_t size);

 private:
  const Spill* spill_;
  uint64_t next_, end_;  // unread range
  size_t step_, at_ = 0;
  std::string buffer_;
};

// Sorts any number of records by their bytes, within bounded memory.
class ExternalSorter {
 public:
  explicit ExternalSorter(size_t memory = size_t{32} << 20) : memory_(memory), spill_(0) {}

  void Add(std::string_view record);
  // Calls with all records in ascending order, equal ones as often as they were added. Ends the
  // sorter.
  void ForEach(const std::function<void(std::string_view)>& call);

 private:
  void Sort();
  void EndRun();
  void Merge(const std::function<void(std::string_view)>& call);

  const size_t memory_;
  std::string bytes_;
  std::vector<std::pair<uint64_t, uint32_t>> records_;  // offset in bytes_ and size
  Spill spill_;
  std::vector<std::pair<uint64_t, uint64_t>> runs_;  // sorted ranges of spill_
};

}  // namespace kv::corpus
