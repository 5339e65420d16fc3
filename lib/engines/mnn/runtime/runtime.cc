// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/runtime/runtime.h"

#include "lib/core/base/error.h"

namespace kv::mnn::runtime {

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
