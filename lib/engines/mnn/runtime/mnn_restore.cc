// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// How the engine gets bytes back: through its caches, else through the decoder.
#include <algorithm>

#include "lib/core/base/hash.h"
#include "lib/engines/mnn/runtime/fnv1a.h"
#include "lib/engines/mnn/runtime/mnn_runtime.h"
#include "lib/engines/mnn/runtime/stopwatch.h"

namespace kv::mnn::runtime {
namespace {

uint64_t EngineHash(const RangeBytes& range) {
  uint64_t hash = kFnv1aBasis;
  for (const auto& tensor : range.tensors) {
    if (tensor != nullptr) hash = Fnv1a64(*tensor, hash);
  }
  return hash;
}

}  // namespace

// Whether the blob really is the range: decoded once for the record, outside all timings.
void MnnRuntime::Audit(Layer& layer, const EncodeResult& result) {
  const Stopwatch watch;
  bool equal = true;
  for (const bool is_value : {false, true}) {
    const auto& raw = result.task.raw.tensors[is_value];
    if (raw == nullptr) continue;
    try {
      Bytes decoded(raw->size());
      setup_.codec.Decode(is_value, result.task.element_bytes[is_value], result.blobs[is_value],
                          decoded, scratch_);
      equal = equal && Hash64(decoded) == result.hashes[is_value];
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception&) {
      equal = false;
    }
  }
  if (equal) {
    for (const bool is_value : {false, true}) {
      const auto& raw = result.task.raw.tensors[is_value];
      if (raw == nullptr) continue;
      layer.measured.AddVerified(is_value, raw->size(), result.blobs[is_value].size());
    }
  } else {
    ++layer.measured.verify_failures;
  }
  audit_seconds_ += watch.seconds();
}

std::optional<RangeBytes> MnnRuntime::RunDecoder(Layer& layer, const Block& block) {
  ++cache_misses_;
  ++layer.measured.decode_calls;
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
    ++layer.measured.failures;
    return std::nullopt;
  }
  layer.measured.decode_us += watch.us();
  return decoded;
}

std::optional<MnnRuntime::Decoded> MnnRuntime::DecodedOf(Layer& layer, const Block& block) {
  const auto hit = [&](const DecodeCache::Entry& entry) {
    ++cache_hits_;
    ++layer.measured.cache_copies;
    layer.measured.seeded_hits += entry.seeded;
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

bool MnnRuntime::IsStrictlyEqual(const Block& block, const RangeBytes& decoded) const {
  if (!setup_.config.strict_roundtrip_check) return true;
  return block.id.raw_hash != 0 && EngineHash(decoded) == block.id.raw_hash;
}

// What came out, held against what went in: the replay's check, not the engine's.
void MnnRuntime::CheckDecoded(Layer& layer, const Block& block, const RangeBytes& decoded) {
  const Stopwatch watch;
  for (const bool is_value : {false, true}) {
    if (decoded.tensors[is_value] == nullptr) continue;
    ++layer.content.ranges;
    layer.content.bytes += decoded.tensors[is_value]->size();
    if (Hash64(*decoded.tensors[is_value]) == block.content_hashes[is_value]) continue;
    ++layer.content.mismatches;
    if (layer.content.first) continue;
    layer.content.first = Difference{layer.cache.source().index, is_value, 0, block.first_position};
  }
  audit_seconds_ += watch.seconds();
}

// Probe and full: one block is decoded, compared and thrown away. A failure leaves it pending.
void MnnRuntime::DecodeOnce(Layer& layer, Block& block) {
  const Stopwatch watch;
  const std::optional<Decoded> decoded = DecodedOf(layer, block);
  const int64_t us = watch.us();
  if (!decoded || !decoded->was_hit) layer.counters.decompress_us += us;
  if (!decoded) {
    Fallback(layer, "decode");
    return;
  }
  block.decoded_once = true;
  layer.counters.decompressed_bytes += block.id.raw_bytes;
  Log(EventKind::kDecode, layer, block.id.begin, block.id.tokens, block.id.raw_bytes,
      block.id.compressed_bytes, us, decoded->was_hit ? "cache" : "decoder");
  CheckDecoded(layer, block, decoded->bytes);
}

// Store, at the start of the layer's next call: every range that was overwritten comes back, and
// its block is gone. What does not come back stays zero.
void MnnRuntime::Restore(uint32_t index) {
  Layer& layer = layers_[index];
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
    const std::optional<Decoded> decoded = DecodedOf(layer, block);
    const bool restored =
        decoded && IsStrictlyEqual(block, decoded->bytes) && Scatter(layer, block, decoded->bytes);
    if (restored) {
      global_.Insert({block.id, decoded->bytes, decoded->seeded}, false);
    }
    const int64_t us = restored ? std::max<int64_t>(1, watch.us()) : watch.us();
    layer.counters.decompress_us += us;
    if (!restored) {
      Fallback(layer, "restore");
      continue;
    }
    layer.counters.decompressed_bytes += block.id.raw_bytes;
    Log(EventKind::kRestore, layer, block.id.begin, block.id.tokens, block.id.raw_bytes,
        block.id.compressed_bytes, us, decoded->was_hit ? "cache" : "decoder");
  }
  // Everything that should have come back, whether or not it did.
  const Stopwatch watch;
  for (const Block& block : dropped) {
    for (const bool is_value : {false, true}) {
      if (is_value && !layer.cache.has_values()) continue;
      const uint64_t row = layer.cache.shape(is_value).row_bytes();
      CompareRows(layer.cache.source(), is_value,
                  layer.cache.positions().subspan(block.id.begin, block.id.tokens),
                  layer.cache.rows(is_value).subspan(block.id.begin * row, block.id.tokens * row),
                  RowOrder::kTokenHeadDim, layer.content);
    }
  }
  audit_seconds_ += watch.seconds();
}

// A hit in the global cache may be another layer's bytes: its key does not hold the geometry.
bool MnnRuntime::Scatter(Layer& layer, const Block& block, const RangeBytes& decoded) {
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

}  // namespace kv::mnn::runtime
