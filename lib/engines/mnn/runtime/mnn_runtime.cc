// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The lossless runtime as the engine's code has it (MnnRuntime, below).
#include <algorithm>

#include "lib/core/base/hash.h"
#include "lib/engines/mnn/runtime/layer_cache.h"
#include "lib/engines/mnn/runtime/runtime.h"

namespace kv::mnn::runtime {
namespace {

constexpr uint64_t kEngineExpandTokens = 64;

uint64_t EngineHash(const RangeBytes& range) {
  uint64_t hash = kFnv1aBasis;
  for (const auto& tensor : range.tensors) {
    if (tensor != nullptr) hash = Fnv1a64(*tensor, hash);
  }
  return hash;
}

// The engine's lossless path, event for event. READ ME FIRST. It does four unexpected things:
// 1. Full mode writes nothing back: it compares the decoded bytes and drops them.
// 2. Store mode overwrites a range with zeros after encoding it, and restores the range at the
//    layer's next call, one token later. It never frees memory; blobs and caches are additional.
// 3. Before it zeroes a range, it puts a copy of the raw bytes into the cache of decoded ranges.
//    The restore therefore never runs the decoder, and a broken blob goes unnoticed.
// 4. With that cache off, a blob that does not decode leaves the zeros in place.
class MnnRuntime : public Runtime {
 public:
  explicit MnnRuntime(const RuntimeSetup& setup)
      : Runtime(setup, setup.config.mode != Mode::kProbe),
        global_(static_cast<uint64_t>(setup.config.decode_cache_blocks)) {
    for (const LayerKv& layer : setup_.snapshot.layers) {
      layers_.emplace_back(layer, static_cast<uint64_t>(setup_.config.decode_cache_blocks));
      layers_.back().cache.Append(0, setup_.prompt);
    }
  }

  void Compact(uint32_t layer, const KeepPlan& kept) override {
    layers_[layer].cache.Compact(kept);
  }
  void Append(uint32_t layer, uint64_t position) override {
    layers_[layer].cache.Append(position, position + 1);
  }
  std::span<const uint32_t> positions(uint32_t layer) override {
    return layers_[layer].cache.positions();
  }
  void Visit(uint32_t layer, bool is_value, const PieceVisitor& visit) override {
    visit(layers_[layer].cache.Piece(is_value));
  }
  bool Damage() override { return layers_.front().cache.FlipBitOfLast(); }

  Resident LayerBytes(uint32_t index) const override {
    const Layer& layer = layers_[index];
    Resident bytes;
    bytes.held = layer.cache.size() * layer.cache.row_bytes();
    bytes.raw = layer.cache.capacity() * layer.cache.row_bytes();
    for (const Block& block : layer.blocks) bytes.blobs += block.id.compressed_bytes;
    bytes.caches = layer.local.bytes();
    return bytes;
  }
  Resident TotalBytes() const override {
    Resident sum = Runtime::TotalBytes();
    sum.caches += global_.bytes();
    return sum;
  }

  // The engine exports nothing while no layer has valid bytes, so a run in which every attempt
  // fails shows no failures.
  EngineMetrics Metrics() const override {
    const EngineMetrics metrics = Runtime::Metrics();
    const bool is_empty = metrics.sums.raw_bytes == 0 || metrics.sums.compressed_bytes == 0;
    return is_empty ? EngineMetrics{} : metrics;
  }

 private:
  // The engine's LosslessBlock.
  struct Block {
    RangeIdentity id;
    std::array<Bytes, 2> blobs;
    bool decoded_once = false;
    bool raw_dropped = false;
    // Used by the replay only; the engine has no such field.
    std::array<uint64_t, 2> content_hashes{};
    uint32_t first_position = 0;
  };

  struct Decoded {
    RangeBytes bytes;
    bool was_hit = false;
    bool seeded = false;  // true: the copy is of raw bytes, not from a decoder
  };

  struct Layer {
    explicit Layer(const LayerKv& source, uint64_t cache_entries)
        : cache(source, kEngineExpandTokens), local(cache_entries) {}

    LayerCache cache;
    LayerClock clock;
    std::vector<Block> blocks;
    DecodeCache local;
  };

  bool is_store() const { return setup_.config.mode == Mode::kStore; }
  LayerRecord& GetRecord(const Layer& layer) {
    return records_[static_cast<size_t>(&layer - layers_.data())];
  }

  uint64_t CountPending(const Layer& layer) const {
    return static_cast<uint64_t>(std::count_if(
        layer.blocks.begin(), layer.blocks.end(),
        [&](const Block& block) { return is_store() ? block.raw_dropped : !block.decoded_once; }));
  }

  // Updates the peaks of the queue. `submitted` is 1 when a task is handed over, because even a
  // fast worker leaves it waiting for a moment. Workers count as the slowest possible: all tasks
  // that were submitted and not yet taken are pending.
  void NotePeaks(const Layer& layer, uint64_t submitted) {
    const uint64_t async = untaken() + submitted;
    async_peak_ = std::max(async_peak_, async);
    queue_peak_ = std::max(queue_peak_, layer.blocks.size() + async);
    queue_peak_least_ = std::max(queue_peak_least_, layer.blocks.size() + submitted);
  }

  bool EncodeNext(const LayerCall& call) override {
    const Config& config = setup_.config;
    const auto budget = TokenBudget(config, call);
    if (!budget) return false;
    Layer& layer = layers_[call.layer];
    const ColdRange cold = FindColdRange(config, *budget);
    const bool plan_cleared = Shrink(cold, layer.clock);
    if (plan_cleared) ShrinkBlocks(layer);
    const auto range = NextEncode(config, setup_.trigger_min, setup_.update_interval, layer.clock,
                                  cold, call.length, call.token_step);
    if (!range) return plan_cleared;
    Advance(config, cold, *range, call.token_step, layer.clock);
    LayerRecord& record = records_[call.layer];
    record.counters.update_count = layer.clock.updates;
    if (CountPending(layer) + untaken() >= static_cast<uint64_t>(config.max_queue)) {
      ++record.counters.backpressure_skip_count;
      ++record.measured.backpressure;
      Log(EventKind::kBackpressure, layer, range->begin, range->tokens);
    } else {
      Encode(call.layer, layer, *range);
    }
    return plan_cleared;
  }

  void Encode(uint32_t index, const Layer& layer, const EncodeRange& range) {
    EncodeTask task;
    task.id = next_id_++;
    task.layer = index;
    task.begin = range.begin;
    task.tokens = range.tokens;
    for (const bool is_value : {false, true}) {
      task.element_bytes[is_value] = layer.cache.shape(is_value).element_bytes;
    }
    task.raw = layer.cache.Gather(range.begin, range.tokens);
    task.engine_raw_hash = setup_.config.strict_roundtrip_check;
    Log(EventKind::kEncode, layer, range.begin, range.tokens, task.raw.size());
    if (workers_ != nullptr) NotePeaks(layer, 1);
    Submit(std::move(task));
  }

  void Apply(EncodeResult& result, LayerRecord& record) override {
    Layer& layer = layers_[result.task.layer];
    const uint64_t raw = result.task.raw.size(), blob = result.blob_bytes();
    if (!result.failed) Audit(result, record.measured);
    const bool useful = !result.failed && blob < raw;
    const uint64_t begin = result.task.begin, end = begin + result.task.tokens;
    // Only store mode drops raw bytes.
    const bool from_dropped =
        std::any_of(layer.blocks.begin(), layer.blocks.end(), [&](const Block& block) {
          return block.raw_dropped && block.id.begin < end &&
                 begin < block.id.begin + block.id.tokens;
        });
    if (!from_dropped) {
      record.counters.raw_bytes += raw;
      record.counters.compressed_bytes += useful ? blob : raw;
    }
    record.counters.compress_us += result.us;
    Log(EventKind::kApply, layer, begin, result.task.tokens, raw, blob, result.us);
    if (result.failed) {
      Fallback(layer, "encode");
    } else if (!useful) {
      ++record.measured.no_gain;
    } else if (end > layer.cache.size()) {
      Fallback(layer, "range");
    } else {
      AddBlock(layer, result);
    }
    NotePeaks(layer, 0);
  }

  // Decodes the blob once for the record, outside all timings.
  void Audit(const EncodeResult& result, Measured& measured) {
    const Stopwatch watch;
    bool equal = true;
    for (const bool is_value : {false, true}) {
      if (result.task.raw.tensors[is_value] == nullptr) continue;
      equal = DecodesToSource(setup_.codec, result, is_value, scratch_) && equal;
    }
    measured.verify_failures += !equal;
    for (const bool is_value : {false, true}) {
      const auto& raw = result.task.raw.tensors[is_value];
      if (equal && raw) {
        measured.AddVerified(is_value, raw->size(), result.blobs[is_value].size());
      }
    }
    audit_seconds_ += watch.seconds();
  }

  void AddBlock(Layer& layer, EncodeResult& result) {
    Block block;
    block.id = {result.task.begin,       result.task.tokens,     result.engine_raw_hash,
                result.engine_blob_hash, result.task.raw.size(), result.blob_bytes()};
    block.blobs = std::move(result.blobs);
    block.decoded_once = is_store();
    block.content_hashes = result.hashes;
    block.first_position = layer.cache.positions()[result.task.begin];
    layer.blocks.push_back(std::move(block));
    if (is_store()) return DropRaw(layer, layer.blocks.back());
    const auto limit = static_cast<uint64_t>(setup_.config.decode_cache_blocks);
    if (limit > 0 && layer.blocks.size() > limit) layer.blocks.erase(layer.blocks.begin());
    for (Block& pending : layer.blocks) {
      if (!pending.decoded_once) return DecodeOnce(layer, pending);
    }
  }

  // Seeds the cache with the raw bytes, then overwrites them.
  void DropRaw(Layer& layer, Block& block) {
    if (setup_.config.decode_cache_blocks > 0) {
      layer.local.Insert({block.id, layer.cache.Gather(block.id.begin, block.id.tokens), true},
                         true);
    }
    layer.cache.Zero(block.id.begin, block.id.tokens);
    block.raw_dropped = true;
    Log(EventKind::kDrop, layer, block.id.begin, block.id.tokens, block.id.raw_bytes,
        block.id.compressed_bytes);
  }

  void ShrinkBlocks(Layer& layer) {
    Log(EventKind::kShrink, layer, layer.clock.last_budget, layer.blocks.size());
    for (Block& block : layer.blocks) {
      // In store mode every block is decoded when its layer shrinks.
      if (!block.decoded_once) DecodeOnce(layer, block);
    }
    layer.blocks.clear();
    layer.local.Clear();
  }

  std::optional<RangeBytes> RunDecoder(const Layer& layer, const Block& block) {
    Measured& measured = GetRecord(layer).measured;
    ++measured.decode_calls;
    const Stopwatch watch;
    RangeBytes decoded;
    try {
      for (const bool is_value : {false, true}) {
        if (block.blobs[is_value].empty()) continue;
        const TensorShape& shape = layer.cache.shape(is_value);
        Bytes raw(block.id.tokens * shape.row_bytes());
        setup_.codec.Decode(is_value, shape.element_bytes, block.blobs[is_value], raw, scratch_);
        decoded.tensors[is_value] = std::make_shared<const Bytes>(std::move(raw));
      }
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception&) {
      ++measured.failures;
      return std::nullopt;
    }
    measured.decode_us += watch.us();
    return decoded;
  }

  // Returns the bytes from a cache, or decodes them. Returns nothing if that fails.
  std::optional<Decoded> DecodeBlock(Layer& layer, const Block& block) {
    const auto hit = [&](const DecodeCache::Entry& entry) {
      Measured& measured = GetRecord(layer).measured;
      ++measured.cache_copies;
      measured.seeded_hits += entry.seeded;
      return Decoded{entry.decoded, true, entry.seeded};
    };
    if (const auto* entry = layer.local.Find(block.id, true)) return hit(*entry);
    if (const auto* entry = layer.local.Find(block.id, false)) return hit(*entry);
    if (const auto* entry = global_.Find(block.id, false)) {
      const Decoded found = hit(*entry);
      layer.local.Insert({block.id, found.bytes, found.seeded}, true);
      return found;
    }
    std::optional<RangeBytes> decoded = RunDecoder(layer, block);
    if (!decoded || !IsStrictlyEqual(block, *decoded)) return std::nullopt;
    layer.local.Insert({block.id, *decoded, false}, true);
    global_.Insert({block.id, *decoded, false}, false);
    return Decoded{std::move(*decoded)};
  }

  bool IsStrictlyEqual(const Block& block, const RangeBytes& decoded) const {
    if (!setup_.config.strict_roundtrip_check) return true;
    return block.id.raw_hash != 0 && EngineHash(decoded) == block.id.raw_hash;
  }

  // Decodes one block, compares it and drops the result (modes probe and full). After a failure the
  // block stays pending.
  void DecodeOnce(Layer& layer, Block& block) {
    const Stopwatch watch;
    const std::optional<Decoded> decoded = DecodeBlock(layer, block);
    const int64_t us = watch.us();
    LayerRecord& record = GetRecord(layer);
    if (!decoded || !decoded->was_hit) record.counters.decompress_us += us;
    if (!decoded) return Fallback(layer, "decode");
    block.decoded_once = true;
    record.counters.decompressed_bytes += block.id.raw_bytes;
    Log(EventKind::kDecode, layer, block.id.begin, block.id.tokens, block.id.raw_bytes,
        block.id.compressed_bytes, us, decoded->was_hit ? "cache" : "decoder");
    CheckDecoded(layer, block, decoded->bytes, record.content);
  }

  // Compares the bytes with those that were encoded. This check is the replay's, not the engine's.
  void CheckDecoded(const Layer& layer, const Block& block, const RangeBytes& decoded,
                    ContentCheck& content) {
    const Stopwatch watch;
    for (const bool is_value : {false, true}) {
      if (decoded.tensors[is_value] == nullptr) continue;
      ++content.ranges;
      content.bytes += decoded.tensors[is_value]->size();
      if (Hash64(*decoded.tensors[is_value]) == block.content_hashes[is_value]) continue;
      ++content.mismatches;
      if (content.first) continue;
      content.first = Difference{layer.cache.source().index, is_value, 0, block.first_position};
    }
    audit_seconds_ += watch.seconds();
  }

  // Restores every range that was overwritten, at the start of the layer's next call in store mode,
  // and removes its block. A range that cannot be restored stays zero.
  void Restore(uint32_t index) override {
    Layer& layer = layers_[index];
    LayerRecord& record = records_[index];
    std::vector<Block> dropped;
    for (Block& block : layer.blocks) {
      if (block.raw_dropped) dropped.push_back(std::move(block));
    }
    if (dropped.empty()) return;
    std::erase_if(layer.blocks, [](const Block& block) { return block.raw_dropped; });
    std::sort(dropped.begin(), dropped.end(),
              [](const Block& a, const Block& b) { return a.id.begin < b.id.begin; });
    for (const Block& block : dropped) {
      const Stopwatch watch;
      const std::optional<Decoded> decoded = DecodeBlock(layer, block);
      const bool restored = decoded && IsStrictlyEqual(block, decoded->bytes) &&
                            Scatter(layer, block, decoded->bytes);
      if (restored) global_.Insert({block.id, decoded->bytes, decoded->seeded}, false);
      const int64_t us = restored ? std::max<int64_t>(1, watch.us()) : watch.us();
      record.counters.decompress_us += us;
      if (!restored) {
        Fallback(layer, "restore");
        continue;
      }
      record.counters.decompressed_bytes += block.id.raw_bytes;
      Log(EventKind::kRestore, layer, block.id.begin, block.id.tokens, block.id.raw_bytes,
          block.id.compressed_bytes, us, decoded->was_hit ? "cache" : "decoder");
    }
    // Counts everything that should have been restored, whether or not it was.
    const Stopwatch watch;
    for (const Block& block : dropped) {
      layer.cache.Compare(block.id.begin, block.id.tokens, record.content);
    }
    audit_seconds_ += watch.seconds();
  }

  // Writes decoded bytes to the layer. A hit in the global cache may hold another layer's bytes,
  // because its key lacks the geometry. Returns false and does nothing if the bytes do not have the
  // shape of the range.
  static bool Scatter(Layer& layer, const Block& block, const RangeBytes& decoded) {
    for (const bool is_value : {false, true}) {
      const uint64_t bytes = decoded.tensors[is_value] ? decoded.tensors[is_value]->size() : 0;
      if (bytes != block.id.tokens * layer.cache.shape(is_value).row_bytes()) return false;
    }
    for (const bool is_value : {false, true}) {
      if (decoded.tensors[is_value] == nullptr) continue;
      layer.cache.Scatter(is_value, block.id.begin, block.id.tokens, *decoded.tensors[is_value]);
    }
    return true;
  }

  void Compare(uint32_t index) override {
    layers_[index].cache.Compare(0, layers_[index].cache.size(), records_[index].content);
  }

  void Fallback(const Layer& layer, std::string_view what) {
    ++GetRecord(layer).counters.fallback_count;
    Log(EventKind::kFallback, layer, 0, 0, 0, 0, 0, what);
  }

  void Log(EventKind kind, const Layer& layer, uint64_t begin, uint64_t tokens, uint64_t raw = 0,
           uint64_t compressed = 0, int64_t us = 0, std::string_view what = {}) {
    if (setup_.events == nullptr) return;
    setup_.events->push_back({kind, token_, layer.cache.source().index, layer.cache.size(), begin,
                              tokens, raw, compressed, us, what});
  }

  std::vector<Layer> layers_;
  DecodeCache global_;
};

}  // namespace

std::unique_ptr<Runtime> MakeMnnRuntime(const RuntimeSetup& setup) {
  return std::make_unique<MnnRuntime>(setup);
}

}  // namespace kv::mnn::runtime
