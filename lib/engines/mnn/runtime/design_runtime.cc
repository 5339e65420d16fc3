// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/runtime/design_runtime.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/core/base/hash.h"
#include "lib/engines/mnn/runtime/stopwatch.h"

namespace kv::mnn::runtime {

DesignRuntime::DesignRuntime(const RuntimeSetup& setup) : setup_(setup), cache_(setup.cache_bytes) {
  for (const LayerKv& layer : setup_.snapshot.layers) {
    layers_.emplace_back(layer);
    layers_.back().hot.Append(0, setup_.prompt);
  }
  if (setup_.config.active() && setup_.config.async_threads > 0) {
    workers_ = std::make_unique<EncodeWorkers>(setup_.codec,
                                               static_cast<uint64_t>(setup_.config.async_threads),
                                               static_cast<uint64_t>(setup_.config.max_queue));
  }
}

bool DesignRuntime::IsInScope(uint32_t layer) const {
  const Config& config = setup_.config;
  // A probe takes one layer to stand for each kind.
  const bool probe = config.mode == Mode::kProbe;
  const bool front = layer < static_cast<uint64_t>(config.front_n) && (!probe || layer == 0) &&
                     !(config.mode == Mode::kStore && config.store_disable_front);
  const bool kept = setup_.h2o_range.Contains(layer) && (!probe || layer == setup_.h2o_range.first);
  if (config.scope == Scope::kFrontN) return front;
  if (config.scope == Scope::kH2oKept) return kept;
  return config.scope == Scope::kFrontNAndH2oKept && (front || kept);
}

// Results of workers are taken at the end of a token: nothing reads a block before.
void DesignRuntime::Start(uint32_t /*layer*/, uint64_t token) { token_ = token; }

void DesignRuntime::Append(uint32_t index, uint64_t position) {
  layers_[index].hot.Append(position, position + 1);
  layers_[index].positions_valid = false;
}

std::span<const uint32_t> DesignRuntime::positions(uint32_t index) {
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

void DesignRuntime::Visit(uint32_t index, bool is_value, const PieceVisitor& visit) {
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

bool DesignRuntime::Step(const LayerCall& call, uint64_t token) {
  token_ = token;
  if (setup_.config.active() && IsInScope(call.layer)) {
    Layer& layer = layers_[call.layer];
    if (call.length >= setup_.trigger_min) CutBlocks(layer);
    SubmitBlocks(call.layer, layer);
  }
  // As the engine: workers overlap with the rest of the same token.
  if (call.layer + 1 == layers_.size()) Settle();
  return false;
}

// The prefill's cold zone to its last token, later whole blocks only.
void DesignRuntime::CutBlocks(Layer& layer) {
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
    // No sliver at the end of the first cut: what is less than half a block joins the last one.
    AddBlock(layer, !layer.opened && cold < block + block / 2 ? cold : block);
  }
  layer.opened = true;
}

void DesignRuntime::AddBlock(Layer& layer, uint64_t tokens) {
  Block block;
  block.id = next_block_++;
  const auto positions = layer.hot.positions().first(tokens);
  block.positions.assign(positions.begin(), positions.end());
  const RangeBytes raw = layer.hot.Gather(0, tokens);
  for (const bool is_value : {false, true}) {
    block.tensors[is_value].raw = raw.tensors[is_value];
  }
  layer.hot.PopFront(tokens);
  layer.blocks.push_back(std::move(block));
}

void DesignRuntime::SubmitBlocks(uint32_t index, Layer& layer) {
  for (Block& block : layer.blocks) {
    if (block.state != State::kRaw) continue;
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
    // Results not yet taken still fill the queue, however quick a worker was.
    const bool is_full = workers_ != nullptr &&
                         workers_->untaken() >= static_cast<uint64_t>(setup_.config.max_queue);
    if (is_full || (workers_ != nullptr && !workers_->TrySubmit(task))) {
      // Later then; until then it is raw.
      ++layer.measured.backpressure;
      Log(EventKind::kBackpressure, layer, block);
      return;
    }
    Log(EventKind::kEncode, layer, block, raw);
    block.state = State::kQueued;
    in_flight_bytes_ += raw;
    largest_task_bytes_ = std::max(largest_task_bytes_, raw);
    if (workers_ != nullptr) queue_peak_ = std::max(queue_peak_, workers_->untaken());
    if (workers_ == nullptr) Apply(RunEncoder(setup_.codec, std::move(task), scratch_));
  }
}

void DesignRuntime::Apply(EncodeResult result) {
  Layer& layer = layers_[result.task.layer];
  const uint64_t raw = result.task.raw.size();
  in_flight_bytes_ -= raw;
  Measured& measured = layer.measured;
  ++measured.encode_calls;
  measured.encoded_tokens += result.task.tokens;
  measured.encode_us += result.us;
  last_codec_us_ = result.us;
  measured.decode_us += result.verify_us;
  if (result.failed) {
    ++measured.failures;
  } else {
    measured.encoded_raw_bytes += raw;
    measured.encoded_blob_bytes += result.blob_bytes();
  }
  const auto found = std::find_if(layer.blocks.begin(), layer.blocks.end(),
                                  [&](const Block& b) { return b.id == result.task.id; });
  for (const bool is_value : {false, true}) {
    const auto& bytes = result.task.raw.tensors[is_value];
    if (bytes == nullptr || result.failed) continue;
    if (result.verified[is_value]) {
      measured.AddVerified(is_value, bytes->size(), result.blobs[is_value].size());
    } else {
      ++measured.verify_failures;
    }
  }
  if (found == layer.blocks.end()) return;  // H2O cut it meanwhile
  Block& block = *found;
  block.state = State::kDone;
  Log(EventKind::kApply, layer, block, raw, result.blob_bytes(), result.us);
  if (result.failed) {
    Log(EventKind::kFallback, layer, block, 0, 0, 0, "encode");
    return;
  }
  for (const bool is_value : {false, true}) {
    if (block.tensors[is_value].raw != nullptr) Settle(layer, block, result, is_value);
  }
}

void DesignRuntime::Settle(Layer& layer, Block& block, EncodeResult& result, bool is_value) {
  Stored& stored = block.tensors[is_value];
  const uint64_t raw = stored.raw->size(), blob = result.blobs[is_value].size();
  if (!result.verified[is_value]) {
    Log(EventKind::kFallback, layer, block, raw, blob, 0, "verify");
  } else if (blob >= raw) {
    ++layer.measured.no_gain;
  } else if (setup_.config.mode == Mode::kStore) {
    stored.blob = std::move(result.blobs[is_value]);
    stored.blob.shrink_to_fit();
    stored.hash = result.hashes[is_value];
    stored.raw = nullptr;
    Log(EventKind::kDrop, layer, block, raw, blob);
  } else if (setup_.config.mode == Mode::kFull) {
    // Proven equal by the worker: what is written back is what came out of the decoder.
    stored.blob = std::move(result.blobs[is_value]);
    stored.hash = result.hashes[is_value];
    stored.raw = nullptr;
    stored.raw = Decode(layer, block, is_value);
    stored.blob = {};
  }
}

LayerCounters DesignRuntime::Counters(uint32_t index) const {
  const Measured& measured = layers_[index].measured;
  LayerCounters counters;
  counters.raw_bytes = measured.encoded_raw_bytes;
  counters.compressed_bytes = measured.encoded_blob_bytes;
  counters.decompressed_bytes = layers_[index].decoded_bytes;
  counters.compress_us = measured.encode_us;
  counters.decompress_us = measured.decode_us;
  counters.fallback_count = measured.failures + measured.verify_failures;
  counters.update_count = measured.encode_calls;
  counters.backpressure_skip_count = measured.backpressure;
  return counters;
}

EngineMetrics DesignRuntime::Metrics() const {
  EngineMetrics metrics;
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    metrics.sums.Add(Counters(i));
    metrics.decode_cache_hit += layers_[i].measured.cache_copies;
    metrics.decode_cache_miss += layers_[i].measured.decode_calls;
  }
  if (metrics.sums.compressed_bytes > 0) {
    metrics.ratio = static_cast<double>(metrics.sums.raw_bytes) /
                    static_cast<double>(metrics.sums.compressed_bytes);
  }
  metrics.codec_us = last_codec_us_;
  metrics.queue_depth_peak = metrics.async_queue_peak = queue_peak_;
  metrics.queue_depth_peak_least = std::min<uint64_t>(queue_peak_, 1);
  metrics.async_wait_us = wait_us_;
  return metrics;
}

Resident DesignRuntime::LayerBytes(uint32_t index) const {
  const Layer& layer = layers_[index];
  const uint64_t row = layer.hot.row_bytes();
  Resident bytes;
  uint64_t tokens = layer.sink.size() + layer.hot.size();
  bytes.raw = (layer.sink.capacity() + layer.hot.capacity()) * row;
  for (const Block& block : layer.blocks) {
    tokens += block.tokens();
    for (const Stored& stored : block.tensors) {
      bytes.raw += stored.raw == nullptr ? 0 : stored.raw->size();
      bytes.blobs += stored.blob.size();
    }
  }
  bytes.held = tokens * row;
  return bytes;
}

Resident DesignRuntime::TotalBytes() const {
  Resident sum;
  for (uint32_t i = 0; i < layers_.size(); ++i) sum.Add(LayerBytes(i));
  sum.caches = cache_.bytes();
  // A task shares the bytes of its block; what a worker adds is the copy that proves its blob.
  const auto running = static_cast<uint64_t>(std::max<int64_t>(1, setup_.config.async_threads));
  sum.in_flight = std::min(in_flight_bytes_, running * largest_task_bytes_);
  return sum;
}

bool DesignRuntime::Damage() {
  return layers_.front().hot.FlipBitOfLast() || layers_.front().sink.FlipBitOfLast();
}

void DesignRuntime::Settle() {
  if (workers_ == nullptr) return;
  for (EncodeResult& result : workers_->WaitAll(wait_us_)) Apply(std::move(result));
}

void DesignRuntime::Finish() {
  const Stopwatch watch;
  for (uint32_t index = 0; index < layers_.size(); ++index) {
    Layer& layer = layers_[index];
    const LayerKv& source = layer.hot.source();
    for (const bool is_value : {false, true}) {
      if (is_value && !layer.hot.has_values()) continue;
      for (const LayerCache* rows : {&layer.sink, &layer.hot}) {
        CompareRows(source, is_value, rows->positions(), rows->rows(is_value),
                    RowOrder::kTokenHeadDim, layer.content);
      }
      for (const Block& block : layer.blocks) {
        const Stored& stored = block.tensors[is_value];
        const auto bytes = stored.raw != nullptr ? stored.raw : Decode(layer, block, is_value);
        CompareRows(source, is_value, block.positions, *bytes, RowOrder::kHeadTokenDim,
                    layer.content);
      }
    }
  }
  audit_seconds_ += watch.seconds();
}

void DesignRuntime::Log(EventKind kind, const Layer& layer, const Block& block, uint64_t raw,
                        uint64_t compressed, int64_t us, std::string_view what) {
  if (setup_.events == nullptr) return;
  uint64_t begin = layer.sink.size(), length = layer.sink.size() + layer.hot.size();
  bool is_before = true;
  for (const Block& other : layer.blocks) {
    is_before = is_before && &other != &block;
    if (is_before) begin += other.tokens();
    length += other.tokens();
  }
  setup_.events->push_back({kind, token_, layer.hot.source().index, length, begin, block.tokens(),
                            raw, compressed, us, what});
}

std::unique_ptr<Runtime> MakeDesignRuntime(const RuntimeSetup& setup) {
  return std::make_unique<DesignRuntime>(setup);
}

}  // namespace kv::mnn::runtime
