// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/cacheblend/blended.h"

#include <algorithm>
#include <cstring>

#include "lib/core/base/checked.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/snapshot/layout.h"

namespace kv::blend {
namespace {

constexpr uint64_t kBlockTokens = 256;  // rows read at once

bool IsPlainFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

void Narrow(DType dtype, const float* values, uint64_t count, std::byte* out) {
  if (dtype == DType::kF16) {
    FloatToHalf(values, out, count);
  } else if (dtype == DType::kBF16) {
    FloatToBFloat(values, out, count);
  } else {
    std::memcpy(out, values, count * sizeof(float));
  }
}

// Returns all rows of one tensor, [token][head][dim]: rows of the full run where `recomputed` is 1,
// the chunks' rows elsewhere.
Bytes BlendRows(const CachePair& caches, size_t layer, bool is_value, DType dtype,
                const std::vector<uint8_t>& recomputed) {
  const uint64_t channels = caches.layers()[layer].channels(is_value), tokens = caches.tokens();
  const uint64_t width = Info(dtype).block_bytes;
  Bytes rows(CheckedProduct({tokens, channels, width}, "blended rows"));
  std::vector<float> full(kBlockTokens * channels), old(kBlockTokens * channels);
  for (uint64_t begin = 0; begin < tokens; begin += kBlockTokens) {
    const uint64_t count = std::min(kBlockTokens, tokens - begin);
    caches.ReadFull(layer, is_value, begin, count, full.data());
    caches.ReadOld(layer, is_value, begin, count, old.data());
    for (uint64_t t = 0; t < count; ++t) {
      if (recomputed[begin + t] == 0) continue;
      std::copy_n(&full[t * channels], channels, &old[t * channels]);
    }
    Narrow(dtype, old.data(), count * channels, &rows[begin * channels * width]);
  }
  return rows;
}

// Returns which tokens are exact in a layer: in the original all of them up to the check layer; in
// LMCache none before it, because its buffer keeps the old rows there.
std::vector<uint8_t> RecomputedIn(const CachePair& caches, const Result& result, size_t layer) {
  std::vector<uint8_t> recomputed(caches.tokens());
  const auto covered = recomputed.begin() + static_cast<std::ptrdiff_t>(caches.covered());
  std::fill(covered, recomputed.end(), 1);  // no chunk covers these tokens
  const bool is_lmcache = result.request.engine == Engine::kLmCache;
  if (!is_lmcache && layer <= result.check_place) {
    std::fill(recomputed.begin(), recomputed.end(), 1);
  } else if (layer >= result.check_place) {
    for (const uint64_t t : result.IndicesAt(layer)) recomputed[t] = 1;
  }
  return recomputed;
}

}  // namespace

Snapshot BlendedCache(const CachePair& caches, const Result& result, ThreadPool& pool) {
  Snapshot blended = *caches.full().rows.parts().front().snapshot;
  blended.stored.clear();
  blended.checks.clear();
  blended.notes.clear();
  blended.key_rotation = KeyRotation::kRotated;
  blended.k_hadamard = blended.v_hadamard = HadamardState::kNo;
  const size_t first = blended.spools.size(), layers = blended.layers.size();
  blended.spools.resize(first + 2 * layers);
  pool.ParallelFor(2 * layers, [&](uint64_t i) {
    const size_t layer = i / 2;
    const bool is_value = i % 2 != 0;
    LayerKv& kv = blended.layers[layer];
    KvTensor& tensor = is_value ? *kv.v : kv.k;
    const DType dtype = IsPlainFloat(tensor.dtype) ? tensor.dtype : DType::kF32;
    auto& spool = blended.spools[first + i];
    spool = FileSource::FromBytes(
        BlendRows(caches, layer, is_value, dtype, RecomputedIn(caches, result, layer)),
        "blended rows");
    tensor = ContiguousTensor(spool->bytes().data(), dtype, caches.tokens(), tensor.heads,
                              tensor.head_dim, Order::kTokenHeadDim);
  });
  return blended;
}

}  // namespace kv::blend
