// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/runtime/runtime.h"

namespace kv::mnn::runtime {

std::string_view Name(EventKind kind) {
  constexpr std::string_view kNames[] = {"evict",        "compact", "encode", "apply",
                                         "drop",         "restore", "decode", "shrink",
                                         "backpressure", "fallback"};
  return kNames[static_cast<int>(kind)];
}

void Resident::Add(const Resident& other) {
  held += other.held;
  raw += other.raw;
  blobs += other.blobs;
  caches += other.caches;
  in_flight += other.in_flight;
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
  verified_raw_bytes += other.verified_raw_bytes;
  verified_blob_bytes += other.verified_blob_bytes;
  for (const bool is_value : {false, true}) {
    verified_raw_of[is_value] += other.verified_raw_of[is_value];
    verified_blob_of[is_value] += other.verified_blob_of[is_value];
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

}  // namespace kv::mnn::runtime
