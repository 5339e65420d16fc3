// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lib/core/codec/backends.h"
#include "lib/engines/mnn/runtime/config.h"
#include "lib/engines/mnn/runtime/layer_cache.h"

namespace kv::mnn::runtime {

// Measures the time since its construction.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  int64_t us() const { return static_cast<int64_t>(seconds() * 1e6); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Turns a range of K or V, gathered as [head][token][dim], into a blob and back. Tests derive
// codecs that fail or damage blobs. Any thread may call it, each with scratch memory of its own.
class RangeCodec {
 public:
  virtual ~RangeCodec() = default;
  // Throws on failure; an empty blob counts as a failure too.
  virtual Bytes Encode(bool is_value, uint32_t element_bytes, ByteSpan raw,
                       CodecScratch& scratch) const = 0;
  // Fills `raw` or throws.
  virtual void Decode(bool is_value, uint32_t element_bytes, ByteSpan blob,
                      std::span<std::byte> raw, CodecScratch& scratch) const = 0;
};

// The engine's codec, which makes a gear container per tensor.
class GearRangeCodec : public RangeCodec {
 public:
  explicit GearRangeCodec(const Config& config)
      : keys_(config.predictors_k), values_(config.predictors_v) {}

  Bytes Encode(bool is_value, uint32_t element_bytes, ByteSpan raw,
               CodecScratch& scratch) const override;
  void Decode(bool is_value, uint32_t element_bytes, ByteSpan blob, std::span<std::byte> raw,
              CodecScratch& scratch) const override;

 private:
  PredictorSet keys_, values_;
};

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

  uint64_t blob_bytes() const { return blobs[0].size() + blobs[1].size(); }
};

// Encodes, and verifies if the task asks for it. Whatever the codec throws becomes a failed result.
EncodeResult RunEncoder(const RangeCodec& codec, EncodeTask task, CodecScratch& scratch) noexcept;

// Returns whether a blob of the result decodes to the bytes that it was made of.
bool DecodesToSource(const RangeCodec& codec, const EncodeResult& result, bool is_value,
                     CodecScratch& scratch);

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
