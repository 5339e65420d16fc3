// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <queue>

#include "lib/core/base/bytes.h"
#include "lib/core/base/descriptor.h"
#include "lib/core/base/error.h"
#include "lib/core/base/file.h"
#include "lib/corpus/merge.h"

namespace kv::corpus {
namespace {

// Memory per record in addition to its bytes.
constexpr size_t kRecordPlace = sizeof(std::pair<uint64_t, uint32_t>);

}  // namespace

void Spill::Append(std::string_view bytes) {
  tail_.append(bytes);
  // Writes in larger pieces, even if nothing may stay in memory.
  constexpr size_t kLeastWritten = size_t{1} << 18;
  if (tail_.size() > std::max(memory_, kLeastWritten)) Flush();
}

void Spill::Flush() {
  if (descriptor_.get() < 0) descriptor_.Reset(OpenSpool());
  if (!WriteAll(descriptor_.get(), AsBytes(tail_), in_file_))
    throw Error(Finding::kWriteFailed, "cannot write a temporary file: {}", std::strerror(errno));
  in_file_ += tail_.size();
  tail_.clear();
}

void Spill::Read(uint64_t offset, char* to, size_t size) const {
  while (size > 0 && offset < in_file_) {
    const ssize_t got = ::pread(descriptor_.get(), to, std::min<uint64_t>(size, in_file_ - offset),
                                static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw Error(Finding::kReadFailed, "cannot read a temporary file");
    to += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
  if (size > 0) std::memcpy(to, tail_.data() + (offset - in_file_), size);
}

std::string_view SpillReader::Take(size_t size) {
  if (buffer_.size() - at_ < size) {
    buffer_.erase(0, at_);
    at_ = 0;
    const size_t kept = buffer_.size();
    const auto more = std::min<uint64_t>(end_ - next_, std::max(step_, size - kept));
    buffer_.resize(kept + more);
    spill_->Read(next_, buffer_.data() + kept, more);
    next_ += more;
  }
  at_ += size;
  return std::string_view(buffer_).substr(at_ - size, size);
}

void ExternalSorter::Add(std::string_view record) {
  const size_t now = bytes_.size() + records_.size() * kRecordPlace;
  if (!records_.empty() && now + record.size() + kRecordPlace > memory_) EndRun();
  records_.emplace_back(bytes_.size(), static_cast<uint32_t>(record.size()));
  bytes_.append(record);
}

void ExternalSorter::Sort() {
  const std::string_view bytes = bytes_;
  std::sort(records_.begin(), records_.end(), [&](const auto& a, const auto& b) {
    return bytes.substr(a.first, a.second) < bytes.substr(b.first, b.second);
  });
}

void ExternalSorter::EndRun() {
  Sort();
  const uint64_t begin = spill_.size();
  for (const auto& [offset, size] : records_) {
    std::array<char, sizeof(uint32_t)> head;
    StoreLE<uint32_t>(head.data(), size);
    spill_.Append({head.data(), head.size()});
    spill_.Append(std::string_view(bytes_).substr(offset, size));
  }
  runs_.emplace_back(begin, spill_.size());
  bytes_.clear();
  records_.clear();
}

void ExternalSorter::ForEach(const std::function<void(std::string_view)>& call) {
  if (!runs_.empty()) {
    EndRun();
    bytes_.shrink_to_fit();
    return Merge(call);
  }
  Sort();
  for (const auto& [offset, size] : records_) {
    call(std::string_view(bytes_).substr(offset, size));
  }
}

void ExternalSorter::Merge(const std::function<void(std::string_view)>& call) {
  const size_t step = std::clamp<size_t>(memory_ / runs_.size(), 1 << 12, 1 << 18);
  std::vector<SpillReader> readers;
  std::vector<std::string> heads(runs_.size());
  const auto later = [&](size_t a, size_t b) { return heads[a] > heads[b]; };
  std::priority_queue<size_t, std::vector<size_t>, decltype(later)> least(later);
  const auto advance = [&](size_t run) {
    if (!readers[run].more()) return;
    const auto size = LoadLE<uint32_t>(readers[run].Take(sizeof(uint32_t)).data());
    heads[run] = readers[run].Take(size);
    least.push(run);
  };
  for (const auto& [begin, end] : runs_) readers.emplace_back(spill_, begin, end, step);
  for (size_t run = 0; run < runs_.size(); ++run) advance(run);
  while (!least.empty()) {
    const size_t run = least.top();
    least.pop();
    call(heads[run]);
    advance(run);
  }
}

}  // namespace kv::corpus
