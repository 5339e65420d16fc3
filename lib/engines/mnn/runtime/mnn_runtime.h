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

// The engine's lossless path, event for event. READ ME FIRST. What it does that nobody would guess:
//  1. Full mode writes nothing back: the decoded bytes are compared and thrown away.
//  2. Store mode overwrites a range with zeros after it was encoded, and restores it at the layer's
//     next call, one token later. Nothing is ever freed; blobs and caches are extra memory.
//  3. Before it zeroes the range it puts a copy of the raw bytes into the cache of decoded ranges,
//     so that the restore never meets the decoder, and a broken blob is never noticed.
//  4. With that cache off, a blob that does not decode leaves the zeros where they are.
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
  // The engine's LosslessBlock.
  struct Block {
    RangeIdentity id;
    std::array<Bytes, 2> blobs;
    bool decoded_once = false;
    bool raw_dropped = false;
    // The replay's own knowledge, not the engine's.
    std::array<uint64_t, 2> content_hashes{};
    uint32_t first_position = 0;

    uint64_t blob_bytes() const { return blobs[0].size() + blobs[1].size(); }
  };

  static constexpr uint64_t kExpandTokens = 64;  // the engine's

  struct Decoded {
    RangeBytes bytes;
    bool was_hit = false;
    bool seeded = false;  // of a copy that no decoder made
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
  // Queued and running; of workers that finish as late as they may, all that was submitted.
  uint64_t AsyncPending(bool of_slowest) const;
  uint64_t CountPending(const Layer& layer) const;
  void NotePeaks(const Layer& layer, uint64_t async);

  void WaitForWorkers();
  void Encode(uint32_t index, const EncodeRange& range, const ColdRange& cold,
              const LayerCall& call);
  void Apply(EncodeResult result);
  void Audit(Layer& layer, const EncodeResult& result);
  void AddBlock(Layer& layer, EncodeResult& result);
  void DropRaw(Layer& layer, Block& block);

  // Through the caches, else by decoding. Nothing where that fails.
  std::optional<Decoded> DecodedOf(Layer& layer, const Block& block);
  std::optional<RangeBytes> RunDecoder(Layer& layer, const Block& block);
  bool IsStrictlyEqual(const Block& block, const RangeBytes& decoded) const;
  void DecodeOnce(Layer& layer, Block& block);
  void CheckDecoded(Layer& layer, const Block& block, const RangeBytes& decoded);
  void Restore(uint32_t index);
  // False, and nothing done, where the bytes are not the shape of the range.
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
  uint64_t cache_hits_ = 0, cache_misses_ = 0, queue_peak_ = 0, async_peak_ = 0;
  int64_t wait_us_ = 0;
  double audit_seconds_ = 0;
  std::unique_ptr<EncodeWorkers> workers_;
};

}  // namespace kv::mnn::runtime
