// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/ranges.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "lib/core/base/error.h"
#include "lib/core/base/file.h"
#include "lib/core/base/parallel.h"

namespace kv {
namespace {

[[noreturn]] void NoRoom(std::string_view action) {
  throw Error(Finding::kWriteFailed, fmt::format("cannot {} the temporary file of a remote one: {}",
                                                 action, std::strerror(errno)));
}

}  // namespace

FetchedFile::FetchedFile(std::unique_ptr<RangeReader> reader) : reader_(std::move(reader)) {
  const uint64_t size = reader_->size();
  if (size == 0) return;
  if (size > static_cast<uint64_t>(INT64_MAX)) {
    throw Error(Finding::kLimit, fmt::format("a remote file of {} bytes", size));
  }
  descriptor_ = OpenSpool();
  void* map = MAP_FAILED;
  if (::ftruncate(descriptor_, static_cast<off_t>(size)) == 0) {
    map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_, 0);
  }
  if (map == MAP_FAILED) {
    const int failure = errno;
    ::close(descriptor_);
    errno = failure;
    NoRoom("size");
  }
  bytes_ = {static_cast<const std::byte*>(map), size};
  blocks_.resize((size + kBlock - 1) / kBlock);
}

FetchedFile::~FetchedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FetchedFile::Need(uint64_t offset, uint64_t size) {
  if (offset >= bytes_.size() || size == 0) return;
  size = std::min(size, bytes_.size() - offset);
  const uint64_t first = offset / kBlock, last = (offset + size - 1) / kBlock + 1;
  for (;;) {
    Claimed claimed{*this};
    Claim(first, last, claimed.runs);
    if (claimed.runs.empty()) return;
    const auto fetch = [&](uint64_t i) {
      Fetch(claimed.runs[i]);
      Settle(claimed.runs[i], State::kThere);
    };
    // One run after another fetches them as well, where no thread can be had.
    std::optional<ThreadPool> pool;
    try {
      if (claimed.runs.size() > 1) {
        pool.emplace(static_cast<int>(std::min<size_t>(claimed.runs.size(), kMostReads)));
      }
    } catch (const Error&) {
    }
    if (!pool) pool.emplace(1);
    pool->ParallelFor(claimed.runs.size(), fetch);
  }
}

FetchedFile::Claimed::~Claimed() {
  for (Run& run : runs) {
    if (!run.settled) file.Settle(run, State::kAbsent);
  }
}

void FetchedFile::Claim(uint64_t first, uint64_t last, std::vector<Run>& runs) {
  constexpr uint64_t kMostBlocks = kMostAtOnce / kBlock;
  std::unique_lock lock(mutex_);
  for (;;) {
    bool waits = false;
    for (uint64_t i = first; i < last; ++i) {
      waits |= blocks_[i] == State::kOnItsWay;
      if (blocks_[i] != State::kAbsent) continue;
      if (runs.empty() || runs.back().last != i || i - runs.back().first == kMostBlocks) {
        runs.push_back({i, i});
      }
      runs.back().last = i + 1;
      blocks_[i] = State::kOnItsWay;
    }
    if (!runs.empty() || !waits) return;
    settled_.wait(lock);  // what another thread fails to fetch is tried again here
  }
}

void FetchedFile::Fetch(const Run& run) {
  const uint64_t begin = run.first * kBlock, end = std::min(run.last * kBlock, bytes_.size());
  Bytes buffer(end - begin);
  reader_->Read(begin, buffer);
  // Written rather than stored through the mapping: a full disk is then an error, not a signal.
  for (uint64_t at = 0; at < buffer.size();) {
    const ssize_t written = ::pwrite(descriptor_, buffer.data() + at, buffer.size() - at,
                                     static_cast<off_t>(begin + at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) NoRoom("write");
    at += static_cast<uint64_t>(written);
  }
}

void FetchedFile::Settle(Run& run, State state) {
  const std::lock_guard lock(mutex_);
  std::fill(blocks_.begin() + static_cast<ptrdiff_t>(run.first),
            blocks_.begin() + static_cast<ptrdiff_t>(run.last), state);
  run.settled = true;
  settled_.notify_all();
}

}  // namespace kv
