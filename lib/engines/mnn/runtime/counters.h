// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>

namespace kv::mnn::runtime {

// The engine's counters of one layer, by its definitions: samples without gain and failures count
// as if compressed to their raw size, skipped ranges do not count, and a time is at least 1 us if
// data came back.
struct LayerCounters {
  uint64_t raw_bytes = 0, compressed_bytes = 0, decompressed_bytes = 0;
  int64_t compress_us = 0, decompress_us = 0;
  uint64_t fallback_count = 0;
  uint64_t update_count = 0;
  uint64_t backpressure_skip_count = 0;

  void Add(const LayerCounters& other) {
    raw_bytes += other.raw_bytes;
    compressed_bytes += other.compressed_bytes;
    decompressed_bytes += other.decompressed_bytes;
    compress_us += other.compress_us;
    decompress_us += other.decompress_us;
    fallback_count += other.fallback_count;
    update_count += other.update_count;
    backpressure_skip_count += other.backpressure_skip_count;
  }
};

// The figures that the engine exports after a layer call (h2o_lossless_*): sums over the layers in
// scope. They keep their old values while no layer has valid bytes, so failures alone never show.
struct EngineMetrics {
  double ratio = 1.0;    // h2o_lossless_ratio
  int64_t codec_us = 0;  // h2o_codec_us: of the last result
  LayerCounters sums;    // h2o_lossless_raw_bytes ...
  // With workers as slow as they may be: a real engine's lie between these and the least, which are
  // of workers that take no time.
  uint64_t queue_depth_peak = 0, queue_depth_peak_least = 0;
  uint64_t async_queue_peak = 0;
  int64_t async_wait_us = 0;
  uint64_t decode_cache_hit = 0, decode_cache_miss = 0;
};

// Our own counts of the same work.
struct Measured {
  uint64_t encode_calls = 0, encoded_tokens = 0;
  uint64_t encoded_raw_bytes = 0;   // handed to the encoder, counted each time
  uint64_t encoded_blob_bytes = 0;  // its outputs, whether they were used or not
  // Bytes of blobs that decoded to the bytes that they were made of: only their ratio is proven. On
  // MNN's own runtime the replay decodes each blob once for this, outside all timings.
  uint64_t verified_raw_bytes = 0, verified_blob_bytes = 0;
  std::array<uint64_t, 2> verified_raw_of{}, verified_blob_of{};  // the same for K and V
  uint64_t verify_failures = 0;
  uint64_t no_gain = 0;   // ranges whose blob is not smaller than the range
  uint64_t failures = 0;  // encoders and decoders that threw
  uint64_t backpressure = 0;
  uint64_t decode_calls = 0;  // times that a decoder ran because somebody needed the bytes
  uint64_t cache_copies = 0;  // times that a cache of decoded ranges had the bytes
  uint64_t seeded_hits = 0;   // of these, entries that no decoder ever filled
  int64_t encode_us = 0, decode_us = 0, wait_us = 0;

  void Add(const Measured& other);
  void AddVerified(bool is_value, uint64_t raw_bytes, uint64_t blob_bytes);
  double verified_ratio() const {
    return verified_blob_bytes == 0
               ? 1.0
               : static_cast<double>(verified_raw_bytes) / static_cast<double>(verified_blob_bytes);
  }
};

}  // namespace kv::mnn::runtime
