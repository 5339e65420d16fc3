// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/runtime/mnn_runtime.h"

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/core/base/hash.h"
#include "lib/engines/mnn/runtime/fnv1a.h"
#include "lib/engines/mnn/runtime/stopwatch.h"

namespace kv::mnn::runtime {

MnnRuntime::MnnRuntime(const RuntimeSetup& setup)
    : setup_(setup), global_(static_cast<uint64_t>(setup.config.decode_cache_blocks)) {
  const Config& config = setup_.config;
  for (const LayerKv& layer : setup_.snapshot.layers) {
    layers_.emplace_back(layer, static_cast<uint64_t>(config.decode_cache_blocks));
    layers_.back().cache.Append(0, setup_.prompt);
  }
  if (config.active() && config.async_threads > 0 && config.mode != Mode::kProbe) {
    workers_ =
        std::make_unique<EncodeWorkers>(setup_.codec, static_cast<uint64_t>(config.async_threads),
                                        static_cast<uint64_t>(config.max_queue));
  }
}

uint64_t MnnRuntime::CountPending(const Layer& layer) const {
  return static_cast<uint64_t>(std::count_if(
      layer.blocks.begin(), layer.blocks.end(),
      [&](const Block& block) { return is_store() ? block.raw_dropped : !block.decoded_once; }));
}

void MnnRuntime::NotePeaks(const Layer& layer, uint64_t submitted) {
  const uint64_t async = AsyncPending() + submitted;
  async_peak_ = std::max(async_peak_, async);
  queue_peak_ = std::max(queue_peak_, layer.blocks.size() + async);
  queue_peak_least_ = std::max(queue_peak_least_, layer.blocks.size() + submitted);
}

void MnnRuntime::Start(uint32_t layer, uint64_t token) {
  token_ = token;
  if (!setup_.config.active()) return;
  if (is_store()) Restore(layer);
}

void MnnRuntime::Compact(uint32_t layer, const KeepPlan& kept) {
  layers_[layer].cache.Compact(kept);
}

void MnnRuntime::Append(uint32_t layer, uint64_t position) {
  layers_[layer].cache.Append(position, position + 1);
}

std::span<const uint32_t> MnnRuntime::positions(uint32_t layer) {
  return layers_[layer].cache.positions();
}

void MnnRuntime::Visit(uint32_t layer, bool is_value, const PieceVisitor& visit) {
  visit(layers_[layer].cache.Piece(is_value));
}

// The engine also takes what is ready between two layer calls. Nothing reads a layer before its
// next call, one token later, so that would only make the bytes held in between a matter of luck.
void MnnRuntime::WaitForWorkers() {
  if (!is_async() || workers_->untaken() == 0) return;
  int64_t waited = 0;
  std::vector<EncodeResult> results = workers_->WaitAll(waited);
  wait_us_ += waited;
  for (EncodeResult& result : results) Apply(std::move(result));
}

bool MnnRuntime::Step(const LayerCall& call, uint64_t token) {
  token_ = token;
  const Config& config = setup_.config;
  if (!config.active()) return false;
  Layer& layer = layers_[call.layer];
  bool plan_cleared = false;
  if (const auto budget = TokenBudget(config, call)) {
    const ColdRange cold = ColdRangeOf(config, *budget);
    plan_cleared = Shrink(cold, layer.clock);
    if (plan_cleared) ShrinkBlocks(layer);
    const auto range = NextEncode(config, setup_.trigger_min, setup_.update_interval, layer.clock,
                                  cold, call.length, call.token_step);
    if (range) Encode(call.layer, *range, cold, call);
  }
  if (call.layer + 1 == layers_.size()) WaitForWorkers();
  Export();
  return plan_cleared;
}

void MnnRuntime::Encode(uint32_t index, const EncodeRange& range, const ColdRange& cold,
                        const LayerCall& call) {
  Layer& layer = layers_[index];
  const auto advance = [&] {
    Advance(setup_.config, cold, range, call.token_step, layer.clock);
    layer.counters.update_count = layer.clock.updates;
  };
  const uint64_t pending = CountPending(layer) + AsyncPending();
  if (pending >= static_cast<uint64_t>(setup_.config.max_queue)) {
    ++layer.counters.backpressure_skip_count;
    ++layer.measured.backpressure;
    advance();
    Log(EventKind::kBackpressure, layer, range.begin, range.tokens);
    return;
  }
  EncodeTask task;
  task.id = next_task_++;
  task.layer = index;
  task.begin = range.begin;
  task.tokens = range.tokens;
  for (const bool is_value : {false, true}) {
    task.element_bytes[is_value] = layer.cache.shape(is_value).element_bytes;
  }
  task.raw = layer.cache.Gather(range.begin, range.tokens);
  task.engine_raw_hash = setup_.config.strict_roundtrip_check;
  Log(EventKind::kEncode, layer, range.begin, range.tokens, task.raw.size());
  advance();
  if (is_async()) {
    in_flight_bytes_ += task.raw.size();
    NotePeaks(layer, 1);
    KV_ASSERT(workers_->TrySubmit(task));  // `pending` was below the bound
    return;
  }
  in_flight_bytes_ += task.raw.size();
  Apply(RunEncoder(setup_.codec, std::move(task), scratch_));
}

void MnnRuntime::Apply(EncodeResult result) {
  Layer& layer = layers_[result.task.layer];
  const uint64_t raw = result.task.raw.size(), blob = result.blob_bytes();
  in_flight_bytes_ -= raw;
  Measured& measured = layer.measured;
  ++measured.encode_calls;
  measured.encoded_tokens += result.task.tokens;
  measured.encode_us += result.us;
  if (!result.failed) {
    measured.encoded_raw_bytes += raw;
    measured.encoded_blob_bytes += blob;
    Audit(layer, result);
  }
  const bool useful = !result.failed && blob < raw;
  const auto overlaps_dropped = [&](const Block& block) {
    return block.raw_dropped && block.id.begin < result.task.begin + result.task.tokens &&
           result.task.begin < block.id.begin + block.id.tokens;
  };
  const bool from_dropped =
      is_store() && std::any_of(layer.blocks.begin(), layer.blocks.end(), overlaps_dropped);
  if (!from_dropped) {
    layer.counters.raw_bytes += raw;
    layer.counters.compressed_bytes += useful ? blob : raw;
  }
  layer.counters.compress_us += result.us;
  last_codec_us_ = result.us;
  Log(EventKind::kApply, layer, result.task.begin, result.task.tokens, raw, blob, result.us);
  if (result.failed) {
    ++measured.failures;
    Fallback(layer, "encode");
  } else if (!useful) {
    ++measured.no_gain;
  } else if (result.task.begin + result.task.tokens > layer.cache.size()) {
    Fallback(layer, "range");
  } else {
    AddBlock(layer, result);
  }
  NotePeaks(layer, 0);
}

void MnnRuntime::AddBlock(Layer& layer, EncodeResult& result) {
  Block block;
  block.id = {result.task.begin,       result.task.tokens,     result.engine_raw_hash,
              result.engine_blob_hash, result.task.raw.size(), result.blob_bytes()};
  block.blobs = std::move(result.blobs);
  block.decoded_once = is_store();
  block.content_hashes = result.hashes;
  block.first_position = layer.cache.positions()[result.task.begin];
  layer.blocks.push_back(std::move(block));
  if (is_store()) {
    DropRaw(layer, layer.blocks.back());
    return;
  }
  const auto limit = static_cast<uint64_t>(setup_.config.decode_cache_blocks);
  if (limit > 0 && layer.blocks.size() > limit) layer.blocks.erase(layer.blocks.begin());
  for (Block& pending : layer.blocks) {
    if (pending.decoded_once) continue;
    DecodeOnce(layer, pending);
    break;
  }
}

// Seeds the cache with the raw bytes, then overwrites them.
void MnnRuntime::DropRaw(Layer& layer, Block& block) {
  if (setup_.config.decode_cache_blocks > 0) {
    layer.local.Insert({block.id, layer.cache.Gather(block.id.begin, block.id.tokens), true}, true);
  }
  layer.cache.Zero(block.id.begin, block.id.tokens);
  block.raw_dropped = true;
  Log(EventKind::kDrop, layer, block.id.begin, block.id.tokens, block.id.raw_bytes,
      block.id.compressed_bytes);
}

void MnnRuntime::ShrinkBlocks(Layer& layer) {
  Log(EventKind::kShrink, layer, layer.clock.last_budget, layer.blocks.size());
  if (!is_store()) {
    for (Block& block : layer.blocks) {
      if (block.decoded_once) continue;
      DecodeOnce(layer, block);
    }
  }
  layer.blocks.clear();
  layer.local.Clear();
}

void MnnRuntime::Fallback(Layer& layer, std::string_view what) {
  ++layer.counters.fallback_count;
  Log(EventKind::kFallback, layer, 0, 0, 0, 0, 0, what);
}

// Sums over the layers in scope that were updated, else over all that were.
void MnnRuntime::Export() {
  const Config& config = setup_.config;
  const auto in_scope = [&](uint32_t layer) {
    const bool front = layer < static_cast<uint64_t>(config.front_n);
    const bool kept = setup_.h2o_range.Contains(layer);
    if (config.scope == Scope::kFrontN) return front;
    return config.scope == Scope::kH2oKept ? kept : front || kept;
  };
  LayerCounters scoped, all;
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    const LayerCounters& counters = layers_[i].counters;
    if (counters.update_count == 0) continue;
    all.Add(counters);
    if (in_scope(i)) scoped.Add(counters);
  }
  const LayerCounters& sums = scoped.update_count > 0 ? scoped : all;
  if (sums.raw_bytes == 0 || sums.compressed_bytes == 0) return;
  metrics_.sums = sums;
  metrics_.ratio = static_cast<double>(sums.raw_bytes) / static_cast<double>(sums.compressed_bytes);
  metrics_.codec_us = last_codec_us_;
  metrics_.queue_depth_peak = queue_peak_;
  metrics_.queue_depth_peak_least = queue_peak_least_;
  metrics_.async_queue_peak = async_peak_;
  metrics_.async_wait_us = wait_us_;
  metrics_.decode_cache_hit = cache_hits_;
  metrics_.decode_cache_miss = cache_misses_;
}

bool MnnRuntime::Damage() { return layers_.front().cache.FlipBitOfLast(); }

void MnnRuntime::Settle() {
  if (!setup_.config.active()) return;
  WaitForWorkers();
  Export();
}

void MnnRuntime::Finish() {
  for (uint32_t i = 0; is_store() && i < layers_.size(); ++i) Restore(i);
  const Stopwatch watch;
  for (Layer& layer : layers_) {
    for (const bool is_value : {false, true}) {
      if (is_value && !layer.cache.has_values()) continue;
      CompareRows(layer.cache.source(), is_value, layer.cache.positions(),
                  layer.cache.rows(is_value), RowOrder::kTokenHeadDim, layer.content);
    }
  }
  audit_seconds_ += watch.seconds();
}

Resident MnnRuntime::LayerBytes(uint32_t index) const {
  const Layer& layer = layers_[index];
  Resident bytes;
  bytes.held = layer.cache.size() * layer.cache.row_bytes();
  bytes.raw = layer.cache.capacity() * layer.cache.row_bytes();
  for (const Block& block : layer.blocks) bytes.blobs += block.blob_bytes();
  bytes.caches = layer.local.bytes();
  return bytes;
}

Resident MnnRuntime::TotalBytes() const {
  Resident sum;
  for (uint32_t i = 0; i < layers_.size(); ++i) sum.Add(LayerBytes(i));
  sum.caches += global_.bytes();
  sum.in_flight = in_flight_bytes_;
  return sum;
}

void MnnRuntime::Log(EventKind kind, const Layer& layer, uint64_t begin, uint64_t tokens,
                     uint64_t raw, uint64_t compressed, int64_t us, std::string_view what) {
  if (setup_.events == nullptr) return;
  setup_.events->push_back({kind, token_, layer.cache.source().index, layer.cache.size(), begin,
                            tokens, raw, compressed, us, what});
}

std::unique_ptr<Runtime> MakeMnnRuntime(const RuntimeSetup& setup) {
  return std::make_unique<MnnRuntime>(setup);
}

}  // namespace kv::mnn::runtime
