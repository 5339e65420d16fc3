// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Quantises the full cache under every hypothesis and counts equal codes, layer by layer.
#include "lib/study/quantisation/origin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"

namespace kv::quantisation {
namespace {

constexpr size_t kBlockCodes = 32;
constexpr double kTiedShare = 1e-3;  // a smaller difference of shares is a tie

// Reads the 32 codes of a block, which follow its scale, its minimum and the fifth bits.
void ReadCodes(DType dtype, const std::byte* block, int* codes) {
  if (dtype == DType::kQ8_0) {
    for (size_t i = 0; i < kBlockCodes; ++i) codes[i] = static_cast<int8_t>(block[2 + i]);
    return;
  }
  const std::byte* nibbles = block + Info(dtype).block_bytes - kBlockCodes / 2;
  const bool has_fifth = dtype == DType::kQ5_0 || dtype == DType::kQ5_1;
  const uint32_t fifth = has_fifth ? LoadLE<uint32_t>(nibbles - 4) : 0;
  for (size_t i = 0; i < kBlockCodes; ++i) {
    const int byte = static_cast<int>(nibbles[i % 16]);
    codes[i] = (i < 16 ? byte & 15 : byte >> 4) | static_cast<int>(fifth >> i & 1) << 4;
  }
}

Agreement Compare(DType dtype, const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  Agreement agreement;
  const size_t bytes = Info(dtype).block_bytes;
  for (size_t at = 0; at + bytes <= std::min(a.size(), b.size()); at += bytes) {
    int left[kBlockCodes], right[kBlockCodes];
    ReadCodes(dtype, &a[at], left);
    ReadCodes(dtype, &b[at], right);
    ++agreement.blocks;
    agreement.equal_blocks += std::equal(&a[at], &a[at] + bytes, &b[at]);
    for (size_t i = 0; i < kBlockCodes; ++i) {
      const auto apart = static_cast<uint64_t>(std::abs(left[i] - right[i]));
      ++agreement.codes;
      agreement.equal_codes += apart == 0;
      agreement.furthest = std::max(agreement.furthest, apart);
    }
  }
  return agreement;
}

// K or V of both caches, layer by layer.
class SidePair {
 public:
  SidePair(const Snapshot& quantised, const Snapshot& full, bool is_key)
      : quantised_(quantised), full_(full), is_key_(is_key) {}

  const KvTensor& Stored(size_t layer) const { return Of(quantised_.layers[layer]); }
  const KvTensor& Full(size_t layer) const { return Of(full_.layers[layer]); }

  Agreement Try(size_t layer, const Origin& origin) const {
    const KvTensor &stored = Stored(layer), &full = Full(layer);
    const uint64_t tokens = std::min(stored.tokens(), full.tokens());
    const std::vector<float> values = GatherFloats(full, 0, tokens, Order::kTokenHeadDim);
    const quant::Side side{values,
                           tokens,
                           full.heads,
                           full.head_dim,
                           is_key_,
                           full_.layers[layer].index,
                           static_cast<uint32_t>(full_.layers.size()),
                           DType::kF16};
    const std::string name = std::string(Name(stored.dtype)) + (origin.searched ? "_search" : "");
    const quant::CacheType& type = quant::ParseCacheType(name, "type");
    return Compare(stored.dtype, Gather(stored, 0, tokens, Order::kTokenHeadDim),
                   quant::PackedRows(type, side, {origin.rounding, origin.rotated, nullptr}));
  }

 private:
  const KvTensor& Of(const LayerKv& layer) const { return is_key_ ? layer.k : *layer.v; }

  const Snapshot& quantised_;
  const Snapshot& full_;
  bool is_key_;
};

std::vector<Origin> ListOrigins(DType dtype, bool is_key, uint32_t dim) {
  std::vector<Origin> origins;
  for (const bool rotated : {true, false}) {
    if (rotated && HadamardSize(!is_key, dim) == 0) continue;
    origins.push_back({rotated, Q8Rounding::kAvx, false});
    if (dtype == DType::kQ8_0) {
      origins.push_back({rotated, Q8Rounding::kReference, false});
      origins.push_back({rotated, Q8Rounding::kArm, false});
    }
    if (dtype == DType::kIQ4_NL) origins.push_back({rotated, Q8Rounding::kAvx, true});
  }
  return origins;
}

SideOrigin FindSideOrigin(const SidePair& side, bool is_key, size_t layers, ThreadPool& pool) {
  SideOrigin found;
  found.dtype = side.Stored(0).dtype;
  for (const Origin& origin : ListOrigins(found.dtype, is_key, side.Full(0).head_dim))
    found.tried.push_back({origin, side.Try(0, origin)});
  std::stable_sort(found.tried.begin(), found.tried.end(), [](const auto& a, const auto& b) {
    return a.first_layer.equal_codes > b.first_layer.equal_codes;
  });
  found.layers.resize(layers);
  pool.ParallelFor(layers, [&](uint64_t layer) {
    if (side.Stored(layer).dtype == found.dtype)
      found.layers[layer] = side.Try(layer, found.tried.front().origin);
  });
  return found;
}

void RequireSameShape(const Snapshot& quantised, const Snapshot& full) {
  const auto refuse = [&](std::string text) {
    throw Error(Finding::kInconsistent, "--against: " + std::move(text))
        .File(quantised.source.path);
  };
  if (quantised.layers.size() != full.layers.size()) {
    refuse(fmt::format("{} layers beside {}", quantised.layers.size(), full.layers.size()));
  }
  for (size_t l = 0; l < full.layers.size(); ++l) {
    const LayerKv &a = quantised.layers[l], &b = full.layers[l];
    if (a.k.channels() != b.k.channels() || a.v.has_value() != b.v.has_value() ||
        (a.v && a.v->channels() != b.v->channels())) {
      refuse(fmt::format("layer {} has rows of other sizes", l));
    }
    if (IsBlockQuantised(b.k.dtype) || (b.v && IsBlockQuantised(b.v->dtype)))
      refuse("the original is itself quantised");
    if (std::min(a.k.tokens(), b.k.tokens()) == 0) refuse("there are no tokens");
  }
}

}  // namespace

size_t SideOrigin::equally_good() const {
  // If even the best hypothesis misses codes because the two runs differ, a few more or less are
  // chance.
  const double best = tried.front().first_layer.share(), tie = best < 1 ? kTiedShare : 0;
  return static_cast<size_t>(std::count_if(tried.begin(), tried.end(), [&](const auto& one) {
    return one.first_layer.share() >= best - tie;
  }));
}

CacheOrigin FindOrigin(const Snapshot& quantised, const Snapshot& full, ThreadPool& pool) {
  RequireSameShape(quantised, full);
  CacheOrigin origin;
  if (IsBlockQuantised(quantised.layers.front().k.dtype)) {
    origin.k = FindSideOrigin(SidePair(quantised, full, true), true, full.layers.size(), pool);
  }
  const std::optional<KvTensor>& v = quantised.layers.front().v;
  if (v && IsBlockQuantised(v->dtype))
    origin.v = FindSideOrigin(SidePair(quantised, full, false), false, full.layers.size(), pool);
  return origin;
}

}  // namespace kv::quantisation
