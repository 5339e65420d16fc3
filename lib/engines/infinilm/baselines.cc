// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/infinilm/baselines.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/base/half.h"

namespace kv {
namespace {

void AppendRow(const FloatMatrix& from, uint64_t row, std::vector<float>& to) {
  to.insert(to.end(), from.row(row), from.row(row) + from.columns);
}

void AppendMean(const FloatMatrix& from, const TokenRange& range, std::vector<float>& to) {
  for (uint64_t d = 0; d < from.columns; ++d) {
    double sum = 0;
    for (uint64_t t = range.begin; t < range.end; ++t) sum += static_cast<double>(from.row(t)[d]);
    to.push_back(static_cast<float>(sum / static_cast<double>(range.end - range.begin)));
  }
}

}  // namespace

SmallCache MeanPool(const FloatMatrix& k, const FloatMatrix& v,
                    std::span<const TokenRange> sources) {
  SmallCache out;
  out.sources.assign(sources.begin(), sources.end());
  for (const TokenRange& range : sources) {
    AppendMean(k, range, out.k);
    AppendMean(v, range, out.v);
  }
  return out;
}

SmallCache KeepLast(const FloatMatrix& k, const FloatMatrix& v,
                    std::span<const TokenRange> sources) {
  SmallCache out;
  for (const TokenRange& range : sources) {
    AppendRow(k, range.end - 1, out.k);
    AppendRow(v, range.end - 1, out.v);
    out.sources.push_back({range.end - 1, range.end});
  }
  return out;
}

SmallCache KeepSmallestKeys(const FloatMatrix& k, const FloatMatrix& v, uint64_t count) {
  std::vector<double> norms(k.rows);
  for (uint64_t t = 0; t < k.rows; ++t) {
    for (uint64_t d = 0; d < k.columns; ++d) {
      norms[t] += static_cast<double>(k.row(t)[d]) * static_cast<double>(k.row(t)[d]);
    }
    if (std::isnan(norms[t])) norms[t] = INFINITY;
  }
  std::vector<uint64_t> order(k.rows);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint64_t a, uint64_t b) { return norms[a] < norms[b]; });
  order.resize(std::min(count, k.rows));
  std::sort(order.begin(), order.end());
  SmallCache out;
  for (const uint64_t t : order) {
    AppendRow(k, t, out.k);
    AppendRow(v, t, out.v);
    out.sources.push_back({t, t + 1});
  }
  return out;
}

void QuantiseRows(std::vector<float>& rows, uint64_t columns, int bits) {
  const auto most = static_cast<float>((1 << (bits - 1)) - 1);
  for (size_t at = 0; at + columns <= rows.size(); at += columns) {
    float largest = 0;
    for (uint64_t d = 0; d < columns; ++d) largest = std::max(largest, std::abs(rows[at + d]));
    const float scale = F16ToF32(F32ToF16(largest / most));
    for (uint64_t d = 0; d < columns; ++d) {
      float& x = rows[at + d];
      // A row too small for an f16 scale is all zeros; the scale's rounding may ask for most + 1.
      x = scale == 0 ? 0 : std::clamp(std::nearbyint(x / scale), -most, most) * scale;
    }
  }
}

uint64_t QuantisedRowBytes(uint64_t columns, int bits) {
  return (columns * static_cast<uint64_t>(bits) + 7) / 8 + sizeof(uint16_t);
}

}  // namespace kv
