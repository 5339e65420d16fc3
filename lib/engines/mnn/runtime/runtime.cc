// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The codec of ranges, the threads that encode, and what both policies of the runtime share.
#include "lib/engines/mnn/runtime/runtime.h"

#include <algorithm>
#include <exception>
#include <new>

#include "lib/core/base/error.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/parallel.h"
#include "lib/core/codec/planes/gear.h"

namespace kv::mnn::runtime {

namespace {

GearKind ToGearKind(uint32_t element_bytes) {
  if (element_bytes == 2) return GearKind::kTwoPlanes;
  if (element_bytes == 4) return GearKind::kFourPlanes;
  throw Error(Finding::kUnsupportedDtype, "elements of {} bytes: the codec knows 2 and 4",
              element_bytes);
}

void Encode(const RangeCodec& codec, EncodeResult& result, CodecScratch& scratch) {
  const Stopwatch watch;
  for (const bool is_value : {false, true}) {
    const auto& raw = result.task.raw.tensors[is_value];
    if (raw == nullptr) continue;
    result.blobs[is_value] =
        codec.Encode(is_value, result.task.element_bytes[is_value], *raw, scratch);
    result.failed |= result.blobs[is_value].empty();
  }
  result.us = watch.us();
}

void Describe(const RangeCodec& codec, EncodeResult& result, CodecScratch& scratch) {
  const EncodeTask& task = result.task;
  uint64_t raw_hash = kFnv1aBasis, blob_hash = kFnv1aBasis;
  for (const bool is_value : {false, true}) {
    const auto& raw = task.raw.tensors[is_value];
    if (raw == nullptr) continue;
    result.hashes[is_value] = Hash64(*raw);
    if (task.engine_raw_hash) raw_hash = Fnv1a64(*raw, raw_hash);
    blob_hash = Fnv1a64(result.blobs[is_value], blob_hash);
  }
  result.engine_raw_hash = task.engine_raw_hash ? raw_hash : 0;
  result.engine_blob_hash = result.failed ? 0 : blob_hash;
  if (!task.verify || result.failed) return;
  const Stopwatch watch;
  for (const bool is_value : {false, true}) {
    if (task.raw.tensors[is_value] == nullptr) continue;
    result.verified[is_value] = DecodesToSource(codec, result, is_value, scratch);
  }
  result.verify_us = watch.us();
}

// Encodes, and verifies if the task asks for it. Turns anything that the codec throws into a failed
// result.
EncodeResult RunEncoder(const RangeCodec& codec, EncodeTask task, CodecScratch& scratch) noexcept {
  EncodeResult result;
  result.task = std::move(task);
  try {
    Encode(codec, result, scratch);
    Describe(codec, result, scratch);
  } catch (const std::bad_alloc&) {
    std::terminate();  // kvtool ran out of memory, which does not count as a failure of the engine
  } catch (...) {
    result.failed = true;
  }
  if (result.failed) result.blobs = {};
  return result;
}

}  // namespace

Bytes GearRangeCodec::Encode(bool is_value, uint32_t element_bytes, ByteSpan raw,
                             CodecScratch& scratch) const {
  GearOptions options;
  options.predictors.fill(is_value ? values_ : keys_);
  Bytes blob;
  EncodeGear(ToGearKind(element_bytes), raw, options, scratch, blob);
  return blob;
}

void GearRangeCodec::Decode(bool /*is_value*/, uint32_t element_bytes, ByteSpan blob,
                            std::span<std::byte> raw, CodecScratch& scratch) const {
  DecodeGear(ToGearKind(element_bytes), blob, raw, scratch);
}

bool DecodesToSource(const RangeCodec& codec, const EncodeResult& result, bool is_value,
                     CodecScratch& scratch) {
  try {
    Bytes decoded(result.task.raw.tensors[is_value]->size());
    codec.Decode(is_value, result.task.element_bytes[is_value], result.blobs[is_value], decoded,
                 scratch);
    return Hash64(decoded) == result.hashes[is_value];
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return false;
  }
}

EncodeWorkers::EncodeWorkers(const RangeCodec& codec, uint64_t threads, uint64_t capacity)
    : codec_(codec), most_threads_(threads), capacity_(capacity) {}

EncodeWorkers::~EncodeWorkers() {
  {
    const std::lock_guard lock(mutex_);
    queued_.clear();
  }
  for (std::jthread& thread : threads_) thread.request_stop();
}

bool EncodeWorkers::TrySubmit(EncodeTask& task) {
  const std::lock_guard lock(mutex_);
  if (queued_.size() + running_ >= capacity_) return false;
  queued_.push_back(std::move(task));
  if (threads_.size() < std::min<uint64_t>(most_threads_, queued_.size() + running_)) {
    try {
      threads_.emplace_back([this](const std::stop_token& stop) { Loop(stop); });
    } catch (const std::exception& failure) {
      if (threads_.empty()) {
        queued_.clear();  // nothing would take the results
        ThrowNoThread(failure, "a thread that encodes");
      }
    }
  }
  changed_.notify_all();
  return true;
}

std::vector<EncodeResult> EncodeWorkers::TakeReady() {
  std::vector<EncodeResult> taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(finished_);
  }
  std::sort(taken.begin(), taken.end(),
            [](const EncodeResult& a, const EncodeResult& b) { return a.task.id < b.task.id; });
  return taken;
}

std::vector<EncodeResult> EncodeWorkers::WaitAll(int64_t& wait_us) {
  {
    std::unique_lock lock(mutex_);
    if (!queued_.empty() || running_ > 0) {
      const Stopwatch watch;
      changed_.wait(lock, [this] { return queued_.empty() && running_ == 0; });
      wait_us += watch.us();
    }
  }
  return TakeReady();
}

uint64_t EncodeWorkers::untaken() const {
  const std::lock_guard lock(mutex_);
  return queued_.size() + running_ + finished_.size();
}

void EncodeWorkers::Loop(const std::stop_token& stop) {
  CodecScratch scratch;
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !queued_.empty(); })) {
    EncodeTask task = std::move(queued_.front());
    queued_.pop_front();
    ++running_;
    lock.unlock();
    EncodeResult result = RunEncoder(codec_, std::move(task), scratch);
    lock.lock();
    finished_.push_back(std::move(result));
    --running_;
    changed_.notify_all();
  }
}

std::string_view Name(EventKind kind) {
  constexpr std::string_view kNames[] = {"evict",        "compact", "encode", "apply",
                                         "drop",         "restore", "decode", "shrink",
                                         "backpressure", "fallback"};
  return kNames[static_cast<int>(kind)];
}

void LayerCounters::Add(const LayerCounters& other) {
  raw_bytes += other.raw_bytes;
  compressed_bytes += other.compressed_bytes;
  decompressed_bytes += other.decompressed_bytes;
  compress_us += other.compress_us;
  decompress_us += other.decompress_us;
  fallback_count += other.fallback_count;
  update_count += other.update_count;
  backpressure_skip_count += other.backpressure_skip_count;
}

void Measured::AddVerified(bool is_value, uint64_t raw_bytes, uint64_t blob_bytes) {
  verified_raw_bytes += raw_bytes;
  verified_blob_bytes += blob_bytes;
  verified_raw_of[is_value] += raw_bytes;
  verified_blob_of[is_value] += blob_bytes;
}

void Measured::Add(const Measured& other) {
  encode_calls += other.encode_calls;
  encoded_tokens += other.encoded_tokens;
  encoded_raw_bytes += other.encoded_raw_bytes;
  encoded_blob_bytes += other.encoded_blob_bytes;
  for (const bool is_value : {false, true}) {
    AddVerified(is_value, other.verified_raw_of[is_value], other.verified_blob_of[is_value]);
  }
  verify_failures += other.verify_failures;
  no_gain += other.no_gain;
  failures += other.failures;
  backpressure += other.backpressure;
  decode_calls += other.decode_calls;
  cache_copies += other.cache_copies;
  seeded_hits += other.seeded_hits;
  encode_us += other.encode_us;
  decode_us += other.decode_us;
  wait_us += other.wait_us;
}

Runtime::Runtime(const RuntimeSetup& setup, bool has_workers)
    : setup_(setup), records_(setup.snapshot.layers.size()) {
  const Config& config = setup_.config;
  if (!has_workers || !config.active() || config.async_threads == 0) return;
  workers_ =
      std::make_unique<EncodeWorkers>(setup_.codec, static_cast<uint64_t>(config.async_threads),
                                      static_cast<uint64_t>(config.max_queue));
}

bool Runtime::Step(const LayerCall& call) {
  const bool plan_cleared = setup_.config.active() && EncodeNext(call);
  if (call.layer + 1 == records_.size()) Settle();
  return plan_cleared;
}

void Runtime::Submit(EncodeTask task) {
  in_flight_bytes_ += task.raw.size();
  if (workers_ == nullptr) return Take(RunEncoder(setup_.codec, std::move(task), scratch_));
  KV_ASSERT(workers_->TrySubmit(task));
}

void Runtime::Take(EncodeResult result) {
  LayerRecord& record = records_[result.task.layer];
  Measured& measured = record.measured;
  in_flight_bytes_ -= result.task.raw.size();
  ++measured.encode_calls;
  measured.encoded_tokens += result.task.tokens;
  measured.encode_us += result.us;
  last_codec_us_ = result.us;
  if (result.failed) {
    ++measured.failures;
  } else {
    measured.encoded_raw_bytes += result.task.raw.size();
    measured.encoded_blob_bytes += result.blob_bytes();
  }
  Apply(result, record);
}

void Runtime::Settle() {
  if (workers_ == nullptr) return;
  for (EncodeResult& result : workers_->WaitAll(wait_us_)) Take(std::move(result));
}

void Runtime::Finish() {
  const auto layers = static_cast<uint32_t>(records_.size());
  for (uint32_t layer = 0; layer < layers; ++layer) Restore(layer);
  const Stopwatch watch;
  for (uint32_t layer = 0; layer < layers; ++layer) Compare(layer);
  audit_seconds_ += watch.seconds();
}

Resident Runtime::TotalBytes() const {
  Resident sum;
  for (uint32_t layer = 0; layer < records_.size(); ++layer) {
    const Resident bytes = LayerBytes(layer);
    sum.held += bytes.held;
    sum.raw += bytes.raw;
    sum.blobs += bytes.blobs;
    sum.caches += bytes.caches;
  }
  sum.in_flight = in_flight_bytes_;
  return sum;
}

EngineMetrics Runtime::Metrics() const {
  EngineMetrics metrics;
  for (uint32_t layer = 0; layer < records_.size(); ++layer) {
    const LayerRecord record = Record(layer);
    metrics.sums.Add(record.counters);
    metrics.decode_cache_hit += record.measured.cache_copies;
    metrics.decode_cache_miss += record.measured.decode_calls;
  }
  if (metrics.sums.compressed_bytes > 0) {
    metrics.ratio = static_cast<double>(metrics.sums.raw_bytes) /
                    static_cast<double>(metrics.sums.compressed_bytes);
  }
  metrics.codec_us = last_codec_us_;
  metrics.queue_depth_peak = queue_peak_;
  metrics.queue_depth_peak_least = queue_peak_least_;
  metrics.async_queue_peak = async_peak_;
  metrics.async_wait_us = wait_us_;
  return metrics;
}

}  // namespace kv::mnn::runtime
