// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The lossless runtime as its design describes it (DesignRuntime, below).
#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "lib/core/base/error.h"
#include "lib/core/base/hash.h"
#include "lib/engines/mnn/runtime/layer_cache.h"
#include "lib/engines/mnn/runtime/runtime.h"

namespace kv::mnn::runtime {
namespace {

constexpr uint64_t kHotExpandTokens = 16;  // step by which the buffer of hot rows grows

// Returns the part of a plan in [begin, begin + tokens), relative to `begin`.
KeepPlan Within(const KeepPlan& plan, uint64_t begin, uint64_t tokens) {
  KeepPlan part;
  for (const KeepRange& range : plan) {
    const uint64_t from = std::max<uint64_t>(range.begin, begin);
    const uint64_t to = std::min<uint64_t>(range.end(), begin + tokens);
    if (from < to) {
      Append(part, {static_cast<uint32_t>(from - begin), static_cast<uint32_t>(to - from)});
    }
  }
  return part;
}

void CompactRows(LayerCache& rows, const KeepPlan& kept) {
  if (KeptTokens(kept) == rows.size()) return;
  if (!kept.empty()) rows.Compact(kept);
  rows.PopFront(kept.empty() ? rows.size() : 0);  // unlike the engine, this frees memory
}

// Selects the tokens in `kept` from a range of `tokens` tokens; both are laid out
// [head][token][dim].
Bytes SelectTokens(const TensorShape& shape, ByteSpan from, uint64_t tokens, const KeepPlan& kept) {
  Bytes to;
  to.reserve(KeptTokens(kept) * shape.row_bytes());
  const uint64_t unit = shape.head_bytes();
  for (uint64_t head = 0; head < shape.heads; ++head) {
    for (const KeepRange& range : kept) {
      const ByteSpan part = from.subspan((head * tokens + range.begin) * unit, range.count * unit);
      to.insert(to.end(), part.begin(), part.end());
    }
  }
  return to;
}

// Joins two ranges that are laid out [head][token][dim].
Bytes JoinTokens(const TensorShape& shape, ByteSpan first, uint64_t first_tokens, ByteSpan second,
                 uint64_t second_tokens) {
  Bytes to;
  to.reserve(first.size() + second.size());
  const uint64_t a = first_tokens * shape.head_bytes(), b = second_tokens * shape.head_bytes();
  for (uint64_t head = 0; head < shape.heads; ++head) {
    const ByteSpan of_first = first.subspan(head * a, a), of_second = second.subspan(head * b, b);
    to.insert(to.end(), of_first.begin(), of_first.end());
    to.insert(to.end(), of_second.begin(), of_second.end());
  }
  return to;
}

// The lossless path as its design describes it:
// * The cold zone of each layer in scope is cut into blocks, and each block is compressed once. The
//   prefill's tokens come first; then each block as soon as the cold zone has grown by it.
// * A worker decodes each blob again and compares hashes before anything relies on the blob. Only
//   then the raw bytes are freed (store), replaced by the decoded ones (full) or kept (probe).
// * Readers get a block's bytes from a cache that is keyed by layer, tensor, range, hash and type
//   and whose capacity is in bytes. On a miss the block is decoded and checked against its hash.
// * The raw bytes stay if a tensor does not get smaller, an encoder fails, or a blob does not
//   decode to its source. A full queue only delays. A block is therefore always raw or verified.
// If H2O evicts part of a block, the block is decoded, cut, joined with its neighbour and encoded
// again. The engine's sampling, bootstrap and grouping do less of this work and are not part of it.
class DesignRuntime : public Runtime {
 public:
  explicit DesignRuntime(const RuntimeSetup& setup)
      : Runtime(setup, true), cache_(setup.cache_bytes) {
    for (const LayerKv& layer : setup_.snapshot.layers) {
      layers_.emplace_back(layer);
      layers_.back().hot.Append(0, setup_.prompt);
    }
  }

  void Append(uint32_t index, uint64_t position) override {
    layers_[index].hot.Append(position, position + 1);
    layers_[index].positions_valid = false;
  }

  std::span<const uint32_t> positions(uint32_t index) override {
    Layer& layer = layers_[index];
    if (!layer.positions_valid) {
      layer.positions.clear();
      const auto add = [&](std::span<const uint32_t> more) {
        layer.positions.insert(layer.positions.end(), more.begin(), more.end());
      };
      add(layer.sink.positions());
      for (const Block& block : layer.blocks) add(block.positions);
      add(layer.hot.positions());
      layer.positions_valid = true;
    }
    return layer.positions;
  }

  void Visit(uint32_t index, bool is_value, const PieceVisitor& visit) override {
    Layer& layer = layers_[index];
    const TensorShape& shape = layer.hot.shape(is_value);
    uint64_t begin = 0;
    const auto visit_rows = [&](const LayerCache& rows) {
      if (rows.size() == 0) return;
      CachePiece piece = rows.Piece(is_value);
      piece.begin = begin;
      visit(piece);
      begin += piece.tokens;
    };
    visit_rows(layer.sink);
    for (const Block& block : layer.blocks) {
      const std::shared_ptr<const Bytes> bytes = Read(index, block, is_value);
      visit({begin, block.tokens(), bytes->data(), shape.head_bytes(),
             block.tokens() * shape.head_bytes()});
      begin += block.tokens();
    }
    visit_rows(layer.hot);
  }

  bool Damage() override {
    return layers_.front().hot.FlipBitOfLast() || layers_.front().sink.FlipBitOfLast();
  }

  void Compact(uint32_t index, const KeepPlan& kept) override {
    Layer& layer = layers_[index];
    const uint64_t sink = layer.sink.size(), hot = layer.hot.size();
    const uint64_t hot_begin = CompactBlocks(index, kept, sink);
    CompactRows(layer.sink, Within(kept, 0, sink));
    CompactRows(layer.hot, Within(kept, hot_begin, hot));
    layer.positions_valid = false;
  }

  // Reports a layer's work under the engine's names.
  LayerRecord Record(uint32_t index) const override {
    LayerRecord record = records_[index];
    const Measured& measured = record.measured;
    record.counters = {.raw_bytes = measured.encoded_raw_bytes,
                       .compressed_bytes = measured.encoded_blob_bytes,
                       .decompressed_bytes = record.counters.decompressed_bytes,
                       .compress_us = measured.encode_us,
                       .decompress_us = measured.decode_us,
                       .fallback_count = measured.failures + measured.verify_failures,
                       .update_count = measured.encode_calls,
                       .backpressure_skip_count = measured.backpressure};
    return record;
  }

  Resident LayerBytes(uint32_t index) const override {
    const Layer& layer = layers_[index];
    const uint64_t row = layer.hot.row_bytes();
    Resident bytes;
    bytes.held = layer.size() * row;
    bytes.raw = (layer.sink.capacity() + layer.hot.capacity()) * row;
    for (const Block& block : layer.blocks) {
      for (const Stored& stored : block.tensors) {
        bytes.raw += stored.raw == nullptr ? 0 : stored.raw->size();
        bytes.blobs += stored.blob.size();
      }
    }
    return bytes;
  }

  Resident TotalBytes() const override {
    Resident sum = Runtime::TotalBytes();
    sum.caches = cache_.bytes();
    // A task shares the bytes of its block; a worker adds only the copy that it decodes for
    // comparison.
    const auto running = static_cast<uint64_t>(std::max<int64_t>(1, setup_.config.async_threads));
    sum.in_flight = std::min(in_flight_bytes_, running * largest_task_bytes_);
    return sum;
  }

 private:
  // One tensor of a block. It always has its raw bytes, its blob, or both.
  struct Stored {
    std::shared_ptr<const Bytes> raw;  // [head][token][dim]
    Bytes blob;
    uint64_t hash = 0;  // hash of the raw bytes, which is set together with the blob
  };
  struct Block {
    uint64_t id = 0;
    bool was_encoded = false;  // true once its encoding has begun
    std::vector<uint32_t> positions;
    std::array<Stored, 2> tensors;

    uint64_t tokens() const { return positions.size(); }
  };
  // One layer, with its tokens in the order sink, blocks, hot.
  struct Layer {
    explicit Layer(const LayerKv& source)
        : sink(source, kHotExpandTokens), hot(source, kHotExpandTokens) {}

    LayerCache sink;
    std::deque<Block> blocks;
    LayerCache hot;
    bool opened = false;  // true once the prefill's tokens have been cut into blocks
    std::vector<uint32_t> positions;
    bool positions_valid = false;

    uint64_t size() const {
      uint64_t tokens = sink.size() + hot.size();
      for (const Block& block : blocks) tokens += block.tokens();
      return tokens;
    }
  };

  bool IsInScope(uint32_t layer) const {
    const Config& config = setup_.config;
    // In probe mode one layer represents each kind.
    const bool probe = config.mode == Mode::kProbe;
    const bool front = layer < static_cast<uint64_t>(config.front_n) && (!probe || layer == 0) &&
                       !(config.mode == Mode::kStore && config.store_disable_front);
    const bool kept =
        setup_.h2o_range.Contains(layer) && (!probe || layer == setup_.h2o_range.first);
    if (config.scope == Scope::kFrontN) return front;
    if (config.scope == Scope::kH2oKept) return kept;
    return config.scope == Scope::kFrontNAndH2oKept && (front || kept);
  }

  bool EncodeNext(const LayerCall& call) override {
    if (!IsInScope(call.layer)) return false;
    if (call.length >= setup_.trigger_min) CutBlocks(layers_[call.layer]);
    SubmitBlocks(call.layer);
    return false;
  }

  // Cuts the prefill's cold zone to its last token, later only whole blocks.
  void CutBlocks(Layer& layer) {
    const auto recent = static_cast<uint64_t>(setup_.config.hot_recent_tokens);
    const auto block = static_cast<uint64_t>(setup_.config.block_tokens);
    if (!layer.opened) {
      const auto sink = static_cast<uint64_t>(setup_.config.hot_sink_tokens);
      if (layer.hot.size() <= sink + recent) return;
      layer.sink = layer.hot.TakeFront(sink);
    }
    while (layer.hot.size() > recent) {
      const uint64_t cold = layer.hot.size() - recent;
      if (layer.opened && cold < block) break;
      // The first cut leaves no small rest: less than half a block is joined to the last one.
      AddBlock(layer, !layer.opened && cold < block + block / 2 ? cold : block);
    }
    layer.opened = true;
  }

  void AddBlock(Layer& layer, uint64_t tokens) {
    Block block;
    block.id = next_id_++;
    const auto positions = layer.hot.positions().first(tokens);
    block.positions.assign(positions.begin(), positions.end());
    const RangeBytes raw = layer.hot.Gather(0, tokens);
    for (const bool is_value : {false, true}) block.tensors[is_value].raw = raw.tensors[is_value];
    layer.hot.PopFront(tokens);
    layer.blocks.push_back(std::move(block));
  }

  void SubmitBlocks(uint32_t index) {
    Layer& layer = layers_[index];
    for (Block& block : layer.blocks) {
      if (block.was_encoded) continue;
      // Results not yet taken count as queued, however fast a worker was.
      if (untaken() >= static_cast<uint64_t>(setup_.config.max_queue)) {
        // The block stays raw and is submitted later.
        ++records_[index].measured.backpressure;
        return Log(EventKind::kBackpressure, layer, block);
      }
      EncodeTask task;
      task.id = block.id;
      task.layer = index;
      task.begin = block.positions.front();
      task.tokens = block.tokens();
      task.verify = true;
      for (const bool is_value : {false, true}) {
        task.element_bytes[is_value] = layer.hot.shape(is_value).element_bytes;
        task.raw.tensors[is_value] = block.tensors[is_value].raw;
      }
      const uint64_t raw = task.raw.size();
      Log(EventKind::kEncode, layer, block, raw);
      block.was_encoded = true;
      largest_task_bytes_ = std::max(largest_task_bytes_, raw);
      Submit(std::move(task));
      queue_peak_ = async_peak_ = std::max(queue_peak_, untaken());
      queue_peak_least_ = std::min<uint64_t>(queue_peak_, 1);
    }
  }

  void Apply(EncodeResult& result, LayerRecord& record) override {
    Layer& layer = layers_[result.task.layer];
    Measured& measured = record.measured;
    measured.decode_us += result.verify_us;
    for (const bool is_value : {false, true}) {
      const auto& bytes = result.task.raw.tensors[is_value];
      if (bytes == nullptr || result.failed) continue;
      if (result.verified[is_value]) {
        measured.AddVerified(is_value, bytes->size(), result.blobs[is_value].size());
      } else {
        ++measured.verify_failures;
      }
    }
    const auto found = std::find_if(layer.blocks.begin(), layer.blocks.end(),
                                    [&](const Block& b) { return b.id == result.task.id; });
    if (found == layer.blocks.end()) return;  // H2O cut the block while it was encoded
    Block& block = *found;
    Log(EventKind::kApply, layer, block, result.task.raw.size(), result.blob_bytes(), result.us);
    if (result.failed) return Log(EventKind::kFallback, layer, block, 0, 0, 0, "encode");
    for (const bool is_value : {false, true}) {
      if (block.tensors[is_value].raw == nullptr) continue;
      Replace(result.task.layer, block, result, is_value);
    }
  }

  // Replaces the raw bytes of a tensor by its blob, if the mode says so and the blob is good.
  void Replace(uint32_t index, Block& block, EncodeResult& result, bool is_value) {
    const Layer& layer = layers_[index];
    Stored& stored = block.tensors[is_value];
    const uint64_t raw = stored.raw->size(), blob = result.blobs[is_value].size();
    if (!result.verified[is_value]) {
      return Log(EventKind::kFallback, layer, block, raw, blob, 0, "verify");
    }
    if (blob >= raw) {
      ++records_[index].measured.no_gain;
      return;
    }
    if (setup_.config.mode == Mode::kProbe) return;
    stored.blob = std::move(result.blobs[is_value]);
    stored.blob.shrink_to_fit();
    stored.hash = result.hashes[is_value];
    stored.raw = nullptr;
    if (setup_.config.mode == Mode::kStore) {
      return Log(EventKind::kDrop, layer, block, raw, blob);
    }
    // The worker verified the blob, so the decoded bytes are written back.
    stored.raw = Decode(index, block, is_value);
    stored.blob = {};
  }

  RangeCache::Key MakeRangeKey(uint32_t index, const Block& block, bool is_value) const {
    return {index,
            is_value,
            layers_[index].hot.shape(is_value).dtype,
            block.positions.front(),
            block.tokens(),
            block.tensors[is_value].hash};
  }

  std::shared_ptr<const Bytes> Read(uint32_t index, const Block& block, bool is_value) {
    const Stored& stored = block.tensors[is_value];
    if (stored.raw != nullptr) return stored.raw;
    LayerRecord& record = records_[index];
    const RangeCache::Key key = MakeRangeKey(index, block, is_value);
    if (auto cached = cache_.Find(key)) {
      ++record.measured.cache_copies;
      return cached;
    }
    const Stopwatch watch;
    ++record.measured.decode_calls;
    auto bytes = Decode(index, block, is_value);
    record.measured.decode_us += watch.us();
    record.counters.decompressed_bytes += bytes->size();
    cache_.Insert(key, bytes);
    return bytes;
  }

  // Decodes a block. The blob was verified before its raw bytes were freed, so a wrong result means
  // a transient fault or bad memory: it is decoded a second time, and wrong bytes are never
  // returned.
  std::shared_ptr<const Bytes> Decode(uint32_t index, const Block& block, bool is_value) {
    const Layer& layer = layers_[index];
    const TensorShape& shape = layer.hot.shape(is_value);
    const Stored& stored = block.tensors[is_value];
    std::string what = "the decoded bytes have another hash";
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        Bytes raw(block.tokens() * shape.row_bytes());
        setup_.codec.Decode(is_value, shape.element_bytes, stored.blob, raw, scratch_);
        if (Hash64(raw) == stored.hash) return std::make_shared<const Bytes>(std::move(raw));
      } catch (const std::bad_alloc&) {
        throw;
      } catch (const std::exception& error) {
        what = error.what();
      }
      ++records_[index].measured.failures;
      Log(EventKind::kFallback, layer, block, 0, 0, 0, "decode");
    }
    throw std::move(Error(Finding::kContentDiffers,
                          "{} of positions {} to {} cannot be restored from its blob: {}",
                          is_value ? "V" : "K", block.positions.front(), block.positions.back(),
                          what)
                        .In(fmt::format("layer {}", layer.hot.source().index)));
  }

  // Compacts the blocks. `begin` is their first position in the layer's cache. Returns the position
  // after them.
  uint64_t CompactBlocks(uint32_t index, const KeepPlan& kept, uint64_t begin) {
    Layer& layer = layers_[index];
    std::deque<Block> blocks;
    bool last_is_cut = false;
    for (Block& block : layer.blocks) {
      const uint64_t tokens = block.tokens();
      const KeepPlan part = Within(kept, begin, tokens);
      begin += tokens;
      if (KeptTokens(part) == tokens) {
        blocks.push_back(std::move(block));
        last_is_cut = false;
        continue;
      }
      Block rest = Cut(index, block, part);
      if (part.empty()) continue;
      const bool fits = last_is_cut && blocks.back().tokens() + rest.tokens() <=
                                           static_cast<uint64_t>(setup_.config.block_tokens);
      if (fits) {
        Join(layer, blocks.back(), rest);
      } else {
        blocks.push_back(std::move(rest));
      }
      last_is_cut = true;
    }
    layer.blocks = std::move(blocks);
    return begin;
  }

  // Returns the kept tokens of a block, raw again and to be encoded. Decoded copies of the block
  // are dropped.
  Block Cut(uint32_t index, const Block& block, const KeepPlan& kept) {
    const Layer& layer = layers_[index];
    Block rest;
    if (!kept.empty()) rest.id = next_id_++;
    for (const uint32_t token : ListTokens(kept)) rest.positions.push_back(block.positions[token]);
    for (const bool is_value : {false, true}) {
      if (is_value && !layer.hot.has_values()) continue;
      if (!kept.empty()) {
        const auto bytes = Read(index, block, is_value);
        rest.tensors[is_value].raw = std::make_shared<const Bytes>(
            SelectTokens(layer.hot.shape(is_value), *bytes, block.tokens(), kept));
      }
      if (block.tensors[is_value].raw == nullptr)
        cache_.Erase(MakeRangeKey(index, block, is_value));
    }
    return rest;
  }

  static void Join(const Layer& layer, Block& into, const Block& next) {
    for (const bool is_value : {false, true}) {
      if (is_value && !layer.hot.has_values()) continue;
      into.tensors[is_value].raw = std::make_shared<const Bytes>(
          JoinTokens(layer.hot.shape(is_value), *into.tensors[is_value].raw, into.tokens(),
                     *next.tensors[is_value].raw, next.tokens()));
    }
    into.positions.insert(into.positions.end(), next.positions.begin(), next.positions.end());
  }

  void Compare(uint32_t index) override {
    const Layer& layer = layers_[index];
    ContentCheck& content = records_[index].content;
    for (const LayerCache* rows : {&layer.sink, &layer.hot}) {
      rows->Compare(0, rows->size(), content);
    }
    for (const Block& block : layer.blocks) {
      for (const bool is_value : {false, true}) {
        if (is_value && !layer.hot.has_values()) continue;
        const Stored& stored = block.tensors[is_value];
        const auto bytes = stored.raw != nullptr ? stored.raw : Decode(index, block, is_value);
        CompareRows(layer.hot.source(), is_value, block.positions, *bytes, Order::kHeadTokenDim,
                    content);
      }
    }
  }

  void Log(EventKind kind, const Layer& layer, const Block& block, uint64_t raw = 0,
           uint64_t compressed = 0, int64_t us = 0, std::string_view what = {}) {
    if (setup_.events == nullptr) return;
    uint64_t begin = layer.sink.size();
    for (const Block& other : layer.blocks) {
      if (&other == &block) break;
      begin += other.tokens();
    }
    setup_.events->push_back({kind, token_, layer.hot.source().index, layer.size(), begin,
                              block.tokens(), raw, compressed, us, what});
  }

  std::vector<Layer> layers_;
  RangeCache cache_;
  uint64_t largest_task_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Runtime> MakeDesignRuntime(const RuntimeSetup& setup) {
  return std::make_unique<DesignRuntime>(setup);
}

}  // namespace kv::mnn::runtime
