// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Blocks of the intended design: read through the cache, cut by evictions.
#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/core/base/hash.h"
#include "lib/engines/mnn/runtime/design_runtime.h"
#include "lib/engines/mnn/runtime/stopwatch.h"

namespace kv::mnn::runtime {
namespace {

// The part of a plan that lies in [begin, begin + tokens), counted from there.
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
  if (kept.empty()) {
    rows.PopFront(rows.size());
    return;
  }
  rows.Compact(kept);
  rows.PopFront(0);  // this design gives memory back
}

}  // namespace

RangeCache::Key DesignRuntime::KeyOf(uint32_t index, const Block& block, bool is_value) const {
  return {index,
          is_value,
          layers_[index].hot.shape(is_value).dtype,
          block.positions.front(),
          block.tokens(),
          block.tensors[is_value].hash};
}

std::shared_ptr<const Bytes> DesignRuntime::Read(uint32_t index, const Block& block,
                                                 bool is_value) {
  const Stored& stored = block.tensors[is_value];
  if (stored.raw != nullptr) return stored.raw;
  Layer& layer = layers_[index];
  const RangeCache::Key key = KeyOf(index, block, is_value);
  if (auto cached = cache_.Find(key)) {
    ++layer.measured.cache_copies;
    return cached;
  }
  const Stopwatch watch;
  ++layer.measured.decode_calls;
  auto bytes = Decode(layer, block, is_value);
  layer.measured.decode_us += watch.us();
  layer.decoded_bytes += bytes->size();
  cache_.Insert(key, bytes);
  return bytes;
}

// A blob was proven before its raw bytes went, so a decoder that now gives anything else has met a
// passing fault or rotten memory: it gets a second try, and wrong bytes are never handed out.
std::shared_ptr<const Bytes> DesignRuntime::Decode(Layer& layer, const Block& block,
                                                   bool is_value) {
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
    ++layer.measured.failures;
    Log(EventKind::kFallback, layer, block, 0, 0, 0, "decode");
  }
  throw std::move(Error(Finding::kContentDiffers,
                        fmt::format("{} of positions {} to {} does not come back from its blob: {}",
                                    is_value ? "V" : "K", block.positions.front(),
                                    block.positions.back(), what))
                      .In(fmt::format("layer {}", layer.hot.source().index)));
}

void DesignRuntime::Compact(uint32_t index, const KeepPlan& kept) {
  Layer& layer = layers_[index];
  uint64_t blocks_tokens = 0;
  for (const Block& block : layer.blocks) blocks_tokens += block.tokens();
  const uint64_t sink = layer.sink.size(), hot = layer.hot.size();
  CompactBlocks(index, kept, sink);
  CompactRows(layer.sink, Within(kept, 0, sink));
  CompactRows(layer.hot, Within(kept, sink + blocks_tokens, hot));
  layer.positions_valid = false;
}

void DesignRuntime::CompactBlocks(uint32_t index, const KeepPlan& kept, uint64_t begin) {
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
    for (const bool is_value : {false, true}) {
      if (block.tensors[is_value].raw == nullptr && !block.tensors[is_value].blob.empty() &&
          part.empty()) {
        cache_.Erase(KeyOf(index, block, is_value));
      }
    }
    if (part.empty()) continue;
    Block rest = Cut(index, block, part);
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
}

// What is kept of a block, raw again and to be encoded anew.
DesignRuntime::Block DesignRuntime::Cut(uint32_t index, const Block& block, const KeepPlan& kept) {
  Layer& layer = layers_[index];
  Block rest;
  rest.id = next_block_++;
  for (const uint32_t token : TokensOf(kept)) {
    rest.positions.push_back(block.positions[token]);
  }
  for (const bool is_value : {false, true}) {
    if (is_value && !layer.hot.has_values()) continue;
    const auto bytes = Read(index, block, is_value);
    rest.tensors[is_value].raw = std::make_shared<const Bytes>(
        SelectTokens(layer.hot.shape(is_value), *bytes, block.tokens(), kept));
    if (block.tensors[is_value].raw == nullptr) cache_.Erase(KeyOf(index, block, is_value));
  }
  return rest;
}

void DesignRuntime::Join(Layer& layer, Block& into, const Block& next) const {
  for (const bool is_value : {false, true}) {
    if (is_value && !layer.hot.has_values()) continue;
    into.tensors[is_value].raw = std::make_shared<const Bytes>(
        JoinTokens(layer.hot.shape(is_value), *into.tensors[is_value].raw, into.tokens(),
                   *next.tensors[is_value].raw, next.tokens()));
  }
  into.positions.insert(into.positions.end(), next.positions.begin(), next.positions.end());
}

}  // namespace kv::mnn::runtime
