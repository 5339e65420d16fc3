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

// A range to encode. Its bytes are shared with the code that gathered them.
struct EncodeTask {
  uint64_t id = 0;  // counts up in the order of submission
  uint32_t layer = 0;
  uint64_t begin = 0, tokens = 0;
  std::array<uint32_t, 2> element_bytes{};
  RangeBytes raw;
  bool engine_raw_hash = false;  // compute it for the engine's strict check
  bool verify = false;           // decode the blob and compare before anything relies on it
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

// Encodes, and verifies if the task asks for it. Whatever the codec throws becomes a failed result.
EncodeResult RunEncoder(const RangeCodec& codec, EncodeTask task, CodecScratch& scratch) noexcept;

// Runs encoders on threads of its own, which start as work comes in, behind one queue of bounded
// length. Results wait until the owner takes them. The destructor drops queued tasks and waits for
// running ones.
class EncodeWorkers {
 public:
  EncodeWorkers(const RangeCodec& codec, uint64_t threads, uint64_t capacity);
  ~EncodeWorkers();
  EncodeWorkers(const EncodeWorkers&) = delete;
  EncodeWorkers& operator=(const EncodeWorkers&) = delete;

  // Returns false and leaves `task` alone if the queue is full.
  bool TrySubmit(EncodeTask& task);
  // Takes the finished results, in the order of submission.
  std::vector<EncodeResult> TakeReady();
  // Waits for all tasks, adds the time waited to `wait_us`, and takes all results.
  std::vector<EncodeResult> WaitAll(int64_t& wait_us);

  uint64_t untaken() const;  // submitted and not yet taken, finished or not

 private:
  void Loop(const std::stop_token& stop);

  const RangeCodec& codec_;
  const uint64_t most_threads_, capacity_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<EncodeTask> queued_;
  std::vector<EncodeResult> finished_;
  uint64_t running_ = 0;
  std::vector<std::jthread> threads_;  // the last member, so that they are joined first
};

}  // namespace kv::mnn::runtime
