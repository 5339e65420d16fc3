// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "lib/engines/mnn/runtime/decode_cache.h"
#include "lib/engines/mnn/runtime/runtime.h"
#include "lib/engines/mnn/runtime/workers.h"

namespace kv::mnn::runtime {

// The lossless path as its design describes it:
//  * the whole cold zone of a layer in scope is cut into blocks and each is compressed once: first
//    everything that the prefill left, then a block whenever the cold zone has grown by one;
//  * a worker decodes each blob again and compares hashes before anybody relies on it; only then
//    raw bytes are given up (store), replaced by the decoded ones (full) or kept (probe);
//  * a reader gets the bytes of a block through a cache keyed by layer, tensor, range, hash and
//    type, with its capacity in bytes, else by decoding, checked against the hash;
//  * a tensor that does not get smaller, an encoder that fails, a blob that does not come back: the
//    raw bytes stay. A full queue only delays. Whatever happens, a block is either raw or proven.
// H2O may evict part of a block: it is decoded, cut, joined with its neighbour and encoded anew.
// Sampling, bootstrap and grouping are the engine's way to do less of this; they have no part here.
class DesignRuntime : public Runtime {
 public:
  explicit DesignRuntime(const RuntimeSetup& setup);

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
  Measured MeasuredOf(uint32_t layer) const override { return layers_[layer].measured; }
  ContentCheck ContentOf(uint32_t layer) const override { return layers_[layer].content; }
  // The same work under the engine's names.
  LayerCounters Counters(uint32_t layer) const override;
  EngineMetrics Metrics() const override;
  int64_t wait_us() const override { return wait_us_; }
  double audit_seconds() const override { return audit_seconds_; }

 private:
  // One tensor of a block: raw or blob, never neither.
  struct Stored {
    std::shared_ptr<const Bytes> raw;  // [head][token][dim]
    Bytes blob;
    uint64_t hash = 0;  // of the raw bytes; known once a blob is
  };
  static constexpr uint64_t kExpandTokens = 16;  // slack of the hot rows
  enum class State { kRaw, kQueued, kDone };
  struct Block {
    uint64_t id = 0;
    State state = State::kRaw;
    std::vector<uint32_t> positions;
    std::array<Stored, 2> tensors;

    uint64_t tokens() const { return positions.size(); }
  };
  // In the order of tokens: sink, blocks, hot.
  struct Layer {
    explicit Layer(const LayerKv& source)
        : sink(source, kExpandTokens), hot(source, kExpandTokens) {}

    LayerCache sink;
    std::deque<Block> blocks;
    LayerCache hot;
    bool opened = false;  // what the prefill left has been cut into blocks
    std::vector<uint32_t> positions;
    bool positions_valid = false;
    Measured measured;
    uint64_t decoded_bytes = 0;  // for a reader
    ContentCheck content;
  };

  bool IsInScope(uint32_t layer) const;
  void NotePeak();
  void CutBlocks(Layer& layer);
  void AddBlock(Layer& layer, uint64_t tokens);
  void SubmitBlocks(uint32_t index, Layer& layer);
  void Apply(EncodeResult result);
  void Settle(Layer& layer, Block& block, EncodeResult& result, bool is_value);
  std::shared_ptr<const Bytes> Read(uint32_t index, const Block& block, bool is_value);
  std::shared_ptr<const Bytes> Decode(Layer& layer, const Block& block, bool is_value);
  RangeCache::Key KeyOf(uint32_t index, const Block& block, bool is_value) const;
  Block Cut(uint32_t index, const Block& block, const KeepPlan& kept);
  void Join(Layer& layer, Block& into, const Block& next) const;
  void CompactBlocks(uint32_t index, const KeepPlan& kept, uint64_t begin);
  void Log(EventKind kind, const Layer& layer, const Block& block, uint64_t raw = 0,
           uint64_t compressed = 0, int64_t us = 0, std::string_view what = {});

  RuntimeSetup setup_;
  std::vector<Layer> layers_;
  RangeCache cache_;
  CodecScratch scratch_;
  uint64_t next_block_ = 0, token_ = 0;
  uint64_t in_flight_bytes_ = 0, largest_task_bytes_ = 0;
  uint64_t queue_peak_ = 0;
  int64_t wait_us_ = 0, last_codec_us_ = 0;
  double audit_seconds_ = 0;
  std::unique_ptr<EncodeWorkers> workers_;
};

}  // namespace kv::mnn::runtime
