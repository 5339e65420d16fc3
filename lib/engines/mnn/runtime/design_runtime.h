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
//  * The cold zone of each layer in scope is cut into blocks, and each block is compressed once.
//  The
//    prefill's tokens come first; then each block as soon as the cold zone has grown by it.
//  * A worker decodes each blob again and compares hashes before anything relies on the blob. Only
//    then the raw bytes are freed (store), replaced by the decoded ones (full) or kept (probe).
//  * Readers get a block's bytes from a cache that is keyed by layer, tensor, range, hash and type
//    and whose capacity is in bytes. On a miss the block is decoded and checked against its hash.
//  * The raw bytes stay if a tensor does not get smaller, an encoder fails, or a blob does not
//  decode
//    to its source. A full queue only delays. A block is therefore always raw or proven.
// If H2O evicts part of a block, the block is decoded, cut, joined with its neighbour and encoded
// anew. The engine's sampling, bootstrap and grouping do less of this work and are not part of it.
// Implemented by design_runtime.cc and design_blocks.cc.
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
  // The same work, reported under the engine's names.
  LayerCounters Counters(uint32_t layer) const override;
  EngineMetrics Metrics() const override;
  int64_t wait_us() const override { return wait_us_; }
  double audit_seconds() const override { return audit_seconds_; }

 private:
  // One tensor of a block. It always has its raw bytes, its blob, or both.
  struct Stored {
    std::shared_ptr<const Bytes> raw;  // [head][token][dim]
    Bytes blob;
    uint64_t hash = 0;  // of the raw bytes; set together with the blob
  };
  static constexpr uint64_t kExpandTokens = 16;  // by which the buffer of hot rows grows
  enum class State { kRaw, kQueued, kDone };
  struct Block {
    uint64_t id = 0;
    State state = State::kRaw;
    std::vector<uint32_t> positions;
    std::array<Stored, 2> tensors;

    uint64_t tokens() const { return positions.size(); }
  };
  // One layer, with its tokens in the order sink, blocks, hot.
  struct Layer {
    explicit Layer(const LayerKv& source)
        : sink(source, kExpandTokens), hot(source, kExpandTokens) {}

    LayerCache sink;
    std::deque<Block> blocks;
    LayerCache hot;
    bool opened = false;  // whether the prefill's tokens have been cut into blocks
    std::vector<uint32_t> positions;
    bool positions_valid = false;
    Measured measured;
    uint64_t decoded_bytes = 0;  // decoded for readers
    ContentCheck content;
  };

  bool IsInScope(uint32_t layer) const;
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
