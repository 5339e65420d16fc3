// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/engines/mnn/runtime/layer_cache.h"
#include "lib/engines/mnn/runtime/range_codec.h"

namespace kv::mnn::runtime {

// A range to encode. The bytes are shared with whoever gathered them.
struct EncodeTask {
  uint64_t id = 0;  // in the order of submission
  uint32_t layer = 0;
  uint64_t begin = 0, tokens = 0;
  std::array<uint32_t, 2> element_bytes{};
  RangeBytes raw;
  bool engine_raw_hash = false;  // the engine's strict check wants it
  bool verify = false;           // decode again and compare before anybody relies on the blob
};

struct EncodeResult {
  EncodeTask task;
  std::array<Bytes, 2> blobs;
  std::array<uint64_t, 2> hashes{};  // of the raw bytes
  uint64_t engine_raw_hash = 0, engine_blob_hash = 0;
  int64_t us = 0;         // of encoding
  int64_t verify_us = 0;  // of decoding and comparing
  bool failed = false;    // an encoder threw or returned nothing
  std::array<bool, 2> verified{};
  std::string what;  // why it failed

  uint64_t blob_bytes() const { return blobs[0].size() + blobs[1].size(); }
};

// Never throws: whatever the codec throws is a failed result.
EncodeResult RunEncoder(const RangeCodec& codec, EncodeTask task, CodecScratch& scratch) noexcept;

// Encoders on threads of their own, started as work comes in, behind one queue of bounded length.
// Results wait until the owner takes them. Destruction drops what is queued, waits for what runs
// and leaves nothing behind.
class EncodeWorkers {
 public:
  EncodeWorkers(const RangeCodec& codec, uint64_t threads, uint64_t capacity);
  ~EncodeWorkers();
  EncodeWorkers(const EncodeWorkers&) = delete;
  EncodeWorkers& operator=(const EncodeWorkers&) = delete;

  // Leaves `task` as it is and returns false where the queue is full.
  bool TrySubmit(EncodeTask& task);
  // Finished results in the order of submission.
  std::vector<EncodeResult> TakeReady();
  // All of them; adds the time blocked.
  std::vector<EncodeResult> WaitAll(int64_t& wait_us);

  uint64_t unfinished() const;  // queued and running
  uint64_t untaken() const;     // submitted and not yet taken, finished or not

 private:
  void Loop(const std::stop_token& stop);

  const RangeCodec& codec_;
  const uint64_t most_threads_, capacity_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<EncodeTask> queued_;
  std::vector<EncodeResult> finished_;
  uint64_t running_ = 0;
  std::vector<std::jthread> threads_;  // last: joined before the rest goes
};

}  // namespace kv::mnn::runtime
