// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <atomic>
#include <functional>

#include "lib/engines/mnn/runtime/replay.h"
#include "tests/support/attention_case.h"

namespace kv::test {

// The gear codec with deliberate faults: hooks get the number of each call, from 0.
class FaultyCodec : public mnn::runtime::RangeCodec {
 public:
  std::function<void(uint64_t call)> before_encode, before_decode;
  std::function<void(uint64_t call, Bytes& blob)> after_encode;

  Bytes Encode(bool is_value, uint32_t element_bytes, ByteSpan raw,
               CodecScratch& scratch) const override {
    const uint64_t call = encodes_++;
    if (before_encode) before_encode(call);
    Bytes blob = gear_.Encode(is_value, element_bytes, raw, scratch);
    if (after_encode) after_encode(call, blob);
    return blob;
  }
  void Decode(bool is_value, uint32_t element_bytes, ByteSpan blob, std::span<std::byte> raw,
              CodecScratch& scratch) const override {
    if (before_decode) before_decode(decodes_++);
    gear_.Decode(is_value, element_bytes, blob, raw, scratch);
  }

 private:
  mnn::runtime::GearRangeCodec gear_{mnn::runtime::Config{}};
  mutable std::atomic<uint64_t> encodes_ = 0, decodes_ = 0;
};

// Damages a stored byte plane without changing the container's structure.
inline void Damage(Bytes& blob) { blob.back() ^= std::byte{1}; }

// A request small enough for a cache of some 200 tokens.
inline mnn::runtime::ReplayRequest SmallRequest(mnn::runtime::Engine engine,
                                                mnn::runtime::Mode mode) {
  mnn::runtime::ReplayRequest request;
  request.engine = engine;
  request.lossless = mnn::runtime::GateConfig(mode);
  request.lossless.scope = mnn::runtime::Scope::kFrontNAndH2oKept;
  request.lossless.store_disable_front = false;
  request.lossless.front_sample_token_interval = 1;
  request.lossless.hot_sink_tokens = 4;
  request.lossless.hot_recent_tokens = 16;
  request.lossless.block_tokens = 32;
  request.lossless.store_bootstrap_tokens = 40;
  request.lossless.store_grouped_step_tokens = 32;
  request.h2o.trigger_min_tokens = 32;
  request.h2o.update_interval = 4;
  request.prompt_tokens = 96;
  request.keep_events = true;
  return request;
}

inline mnn::runtime::ReplayResult RunCase(const AttentionCase& made,
                                          const mnn::runtime::ReplayRequest& request) {
  ThreadPool pool(1);
  return mnn::runtime::Replay(made.snapshot, &made.trace, request, pool);
}

inline uint64_t CountEvents(const mnn::runtime::ReplayResult& result,
                            mnn::runtime::EventKind kind) {
  uint64_t count = 0;
  for (const mnn::runtime::Event& event : result.events) count += event.kind == kind;
  return count;
}

}  // namespace kv::test
