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

// FNV-1a with 64 bits as the MNN engine computes it. Its offset basis is 1469598103934665603, a
// digit short of the standard 14695981039346656037, so values differ from stock FNV-1a. To hash
// several pieces, pass the hash of the first as the seed of the next.
constexpr uint64_t kFnv1aBasis = 1469598103934665603u;

inline uint64_t Fnv1a64(ByteSpan bytes, uint64_t seed = kFnv1aBasis) {
  uint64_t hash = seed;
  for (const std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 1099511628211u;
  return hash;
}

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
// codecs that fail or damage blobs. Thread-safe; each thread passes its own scratch memory.
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
  bool verify = false;           // decode the blob and compare it before it is used
};

struct EncodeResult {
  EncodeTask task;
  std::array<Bytes, 2> blobs;
  std::array<uint64_t, 2> hashes{};  // of the raw bytes
  uint64_t engine_raw_hash = 0, engine_blob_hash = 0;
  int64_t us = 0;         // of encoding
  int64_t verify_us = 0;  // of decoding and comparing
  bool failed = false;    // true: an encoder threw or returned nothing
  std::array<bool, 2> verified{};

  uint64_t blob_bytes() const { return blobs[0].size() + blobs[1].size(); }
};

// Encodes, and verifies if the task asks for it. Turns anything that the codec throws into a failed
// result.
EncodeResult RunEncoder(const RangeCodec& codec, EncodeTask task, CodecScratch& scratch) noexcept;

// Returns true if a blob of the result decodes to its source.
bool DecodesToSource(const RangeCodec& codec, const EncodeResult& result, bool is_value,
                     CodecScratch& scratch);

// Runs encoders on its own threads, which start as work comes in, behind one queue of bounded
// length. Results wait until the owner takes them. The destructor drops queued tasks and waits for
// running ones.
class EncodeWorkers {
 public:
  EncodeWorkers(const RangeCodec& codec, uint64_t threads, uint64_t capacity);
  ~EncodeWorkers();
  EncodeWorkers(const EncodeWorkers&) = delete;
  EncodeWorkers& operator=(const EncodeWorkers&) = delete;

  // Returns false and does not change `task` if the queue is full.
  bool TrySubmit(EncodeTask& task);
  // Takes the finished results, in the order of submission.
  std::vector<EncodeResult> TakeReady();
  // Waits for all tasks, adds the time waited to `wait_us`, and takes all results.
  std::vector<EncodeResult> WaitAll(int64_t& wait_us);

  uint64_t untaken() const;  // number of tasks submitted and not yet taken, finished or not

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
