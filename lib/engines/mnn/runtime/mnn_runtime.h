// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lib/engines/mnn/runtime/decode_cache.h"
#include "lib/engines/mnn/runtime/runtime.h"
#include "lib/engines/mnn/runtime/workers.h"

namespace kv::mnn::runtime {

// The engine's lossless path, event for event. READ ME FIRST. It does four things that nobody would
// guess:
//  1. Full mode writes nothing back: it compares the decoded bytes and throws them away.
//  2. Store mode overwrites a range with zeros after encoding it, and restores the range at the
//     layer's next call, one token later. It never frees memory; blobs and caches come on top.
//  3. Before it zeroes a range, it puts a copy of the raw bytes into the cache of decoded ranges.
//  The
//     restore therefore never runs the decoder, and a broken blob goes unnoticed.
//  4. With that cache off, a blob that does not decode leaves the zeros in place.
// Implemented by mnn_runtime.cc and mnn_restore.cc.
class MnnRuntime : public Runtime {
 public:
  explicit MnnRuntime(const RuntimeSetup& setup);

  void Start(uint32_t layer, uint64_t token) override;
  void Compact(uint32_t layer, const KeepPlan& kept) override;
  void Append(uint32_t layer, uint64_t position) override;
  std::span<const uint32_t> positions(uint32_t layer) override;
  void Visit(uint32_t layer, bool is_value, const PieceVisitor& visit) override;
  bool Step(const LayerCall& call, uint64_t token) override;
  bool Damage() override;
  void Settle() override;
  void Finish() override;

  Resident LayerBytes(uint32_t layer) const override;
  Resident TotalBytes() const override;
  LayerCounters Counters(uint32_t layer) const override { return layers_[layer].counters; }
  EngineMetrics Metrics() const override { return metrics_; }
  Measured MeasuredOf(uint32_t layer) const override { return layers_[layer].measured; }
  ContentCheck ContentOf(uint32_t layer) const override { return layers_[layer].content; }
  int64_t wait_us() const override { return wait_us_; }
  double audit_seconds() const override { return audit_seconds_; }

 private:
  // What the engine calls LosslessBlock.
  struct Block {
    RangeIdentity id;
    std::array<Bytes, 2> blobs;
    bool decoded_once = false;
    bool raw_dropped = false;
    // Known to the replay only, not to the engine.
    std::array<uint64_t, 2> content_hashes{};
    uint32_t first_position = 0;

    uint64_t blob_bytes() const { return blobs[0].size() + blobs[1].size(); }
  };

  static constexpr uint64_t kExpandTokens = 64;  // the engine's

  struct Decoded {
    RangeBytes bytes;
    bool was_hit = false;
    bool seeded = false;  // a copy of the raw bytes, which no decoder made
  };

  struct Layer {
    explicit Layer(const LayerKv& source, uint64_t cache_entries)
        : cache(source, kExpandTokens), local(cache_entries) {}

    LayerCache cache;
    LayerClock clock;
    std::vector<Block> blocks;
    DecodeCache local;
    LayerCounters counters;
    Measured measured;
    ContentCheck content;
  };

  bool is_store() const { return setup_.config.mode == Mode::kStore; }
  bool is_async() const { return workers_ != nullptr; }
  // Counts the tasks that are queued or running with the slowest workers: all that were submitted
  // and not yet taken.
  uint64_t AsyncPending() const { return is_async() ? workers_->untaken() : 0; }
  uint64_t CountPending(const Layer& layer) const;
  // `submitted` is 1 where a task is handed over: no worker is so quick that it never waited.
  void NotePeaks(const Layer& layer, uint64_t submitted);

  void WaitForWorkers();
  void Encode(uint32_t index, const EncodeRange& range, const ColdRange& cold,
              const LayerCall& call);
  void Apply(EncodeResult result);
  void Audit(Layer& layer, const EncodeResult& result);
  void AddBlock(Layer& layer, EncodeResult& result);
  void DropRaw(Layer& layer, Block& block);

  // Gets the bytes from a cache, else by decoding. Returns nothing if that fails.
  std::optional<Decoded> DecodedOf(Layer& layer, const Block& block);
  std::optional<RangeBytes> RunDecoder(Layer& layer, const Block& block);
  bool IsStrictlyEqual(const Block& block, const RangeBytes& decoded) const;
  void DecodeOnce(Layer& layer, Block& block);
  void CheckDecoded(Layer& layer, const Block& block, const RangeBytes& decoded);
  void Restore(uint32_t index);
  // Returns false and does nothing if the bytes do not have the shape of the range.
  bool Scatter(Layer& layer, const Block& block, const RangeBytes& decoded);
  void ShrinkBlocks(Layer& layer);
  void Fallback(Layer& layer, std::string_view what);

  void Export();
  void Log(EventKind kind, const Layer& layer, uint64_t begin, uint64_t tokens, uint64_t raw = 0,
           uint64_t compressed = 0, int64_t us = 0, std::string_view what = {});

  RuntimeSetup setup_;
  std::vector<Layer> layers_;
  DecodeCache global_;
  CodecScratch scratch_;
  EngineMetrics metrics_;
  uint64_t next_task_ = 0, token_ = 0;
  uint64_t in_flight_bytes_ = 0;
  int64_t last_codec_us_ = 0;
  uint64_t cache_hits_ = 0, cache_misses_ = 0, queue_peak_ = 0, queue_peak_least_ = 0,
           async_peak_ = 0;
  int64_t wait_us_ = 0;
  double audit_seconds_ = 0;
  std::unique_ptr<EncodeWorkers> workers_;
};

}  // namespace kv::mnn::runtime
