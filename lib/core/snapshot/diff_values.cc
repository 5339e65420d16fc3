// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "lib/core/base/arena.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/diff.h"

namespace kv {
namespace {

uint64_t LoadBits(const std::byte* from, uint32_t bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, from, bytes);  // hosts are little-endian, which bytes.cc checks
  return bits;
}

// Returns the number of steps between two floats of one type, counted over its representable
// values; the distance of 0 and -0 is 0.
uint64_t UlpDistance(uint64_t a, uint64_t b, uint32_t bytes) {
  const uint64_t sign = uint64_t{1} << (8 * bytes - 1);
  const uint64_t x = a & (sign - 1), y = b & (sign - 1);
  return (a & sign) != (b & sign) ? x + y : x > y ? x - y : y - x;
}

// Counts differing pairs in the order of their positions.
class Tally {
 public:
  Tally(const RowPair& rows, std::optional<double> atol) : rows_(rows), atol_(atol) {
    diff_.a_dtype = rows.a_dtype;
    diff_.b_dtype = rows.b_dtype;
    has_ulp_ = diff_.has_ulp();
  }

  // `index` counts values from the first of the rows.
  void Differs(uint64_t index, double a, double b, uint64_t a_bits, uint64_t b_bits) {
    ++diff_.different;
    const bool finite = std::isfinite(a) && std::isfinite(b);
    const double distance = finite ? std::abs(a - b) : 0;
    const bool same_value = a == b || (std::isnan(a) && std::isnan(b));
    const bool beyond = !atol_ || (!same_value && (!finite || distance > *atol_));
    diff_.beyond += beyond;
    if (finite) {
      diff_.sum_abs += distance;
      diff_.max_abs = std::max(diff_.max_abs, distance);
      if (b != 0) diff_.max_rel = std::max(diff_.max_rel, distance / std::abs(b));
      if (has_ulp_) {
        const uint32_t bytes = Info(diff_.a_dtype).block_bytes;
        diff_.max_ulp = std::max(diff_.max_ulp, UlpDistance(a_bits, b_bits, bytes));
      }
    } else {
      ++diff_.not_finite;
    }
    if (diff_.first && (diff_.first->is_beyond || !beyond)) return;
    const uint64_t row = uint64_t{rows_.heads} * rows_.head_dim, in_row = index % row;
    diff_.first = {.token = rows_.first_token + index / row,
                   .head = static_cast<uint32_t>(in_row / rows_.head_dim),
                   .dim = static_cast<uint32_t>(in_row % rows_.head_dim),
                   .a = a,
                   .b = b,
                   .a_bits = a_bits,
                   .b_bits = b_bits,
                   .is_beyond = beyond};
  }

  TensorDiff Result(uint64_t values) {
    diff_.values = values;
    return diff_;
  }

 private:
  const RowPair& rows_;
  std::optional<double> atol_;
  TensorDiff diff_;
  bool has_ulp_ = false;
};

template <typename T>
void Widen(ByteSpan bytes, std::vector<double>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<double>(LoadLE<T>(bytes.data() + i * sizeof(T)));
  }
}

}  // namespace

void ToDoubles(DType dtype, ByteSpan bytes, std::vector<double>& out) {
  const DTypeInfo& info = Info(dtype);
  out.resize(bytes.size() / info.block_bytes * info.block_elements);
  switch (dtype) {  // types whose values a float cannot hold
    case DType::kF64:
      return Widen<double>(bytes, out);
    case DType::kI32:
      return Widen<int32_t>(bytes, out);
    case DType::kU32:
      return Widen<uint32_t>(bytes, out);
    case DType::kI64:
      return Widen<int64_t>(bytes, out);
    case DType::kU64:
      return Widen<uint64_t>(bytes, out);
    default:
      break;
  }
  static Reuse<std::vector<float>> scratch;
  const Reuse<std::vector<float>>::Lease lease(scratch);
  std::vector<float>& floats = *lease;
  floats.resize(out.size());
  ToFloats(dtype, bytes, floats);
  std::copy(floats.begin(), floats.end(), out.begin());
}

TensorDiff DiffBits(const RowPair& rows, std::optional<double> atol) {
  const DTypeInfo& info = Info(rows.a_dtype);
  const uint32_t unit = info.block_bytes, per_unit = info.block_elements;
  const uint64_t units = rows.a.size() / unit;
  Tally tally(rows, atol);
  if (rows.a.empty() || std::memcmp(rows.a.data(), rows.b.data(), rows.a.size()) == 0)
    return tally.Result(units * per_unit);
  static Reuse<std::array<std::vector<double>, 2>> scratch;
  const Reuse<std::array<std::vector<double>, 2>>::Lease lease(scratch);
  auto& [a, b] = *lease;
  ToDoubles(rows.a_dtype, rows.a, a);
  ToDoubles(rows.b_dtype, rows.b, b);
  for (uint64_t u = 0; u < units; ++u) {
    const std::byte* const from_a = rows.a.data() + u * unit;
    const std::byte* const from_b = rows.b.data() + u * unit;
    if (per_unit == 1) {
      const uint64_t a_bits = LoadBits(from_a, unit), b_bits = LoadBits(from_b, unit);
      if (a_bits != b_bits) tally.Differs(u, a[u], b[u], a_bits, b_bits);
    } else if (std::memcmp(from_a, from_b, unit) != 0) {
      for (uint64_t i = u * per_unit; i < (u + 1) * per_unit; ++i)
        tally.Differs(i, a[i], b[i], 0, 0);
    }
  }
  return tally.Result(units * per_unit);
}

TensorDiff DiffWidened(const RowPair& rows, std::span<const double> a, std::span<const double> b,
                       std::optional<double> atol) {
  KV_ASSERT(a.size() == b.size());
  Tally tally(rows, atol);
  const auto bits = [](DType dtype, ByteSpan bytes, uint64_t i) {
    const DTypeInfo& info = Info(dtype);
    return info.block_elements == 1
               ? LoadBits(bytes.data() + i * info.block_bytes, info.block_bytes)
               : 0;
  };
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint64_t>(a[i]) == std::bit_cast<uint64_t>(b[i])) continue;
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    tally.Differs(i, a[i], b[i], bits(rows.a_dtype, rows.a, i), bits(rows.b_dtype, rows.b, i));
  }
  return tally.Result(a.size());
}

bool TensorDiff::has_ulp() const { return same_dtype() && Info(a_dtype).is_float; }

void TensorDiff::Add(const TensorDiff& later) {
  values += later.values;
  different += later.different;
  beyond += later.beyond;
  not_finite += later.not_finite;
  max_abs = std::max(max_abs, later.max_abs);
  max_rel = std::max(max_rel, later.max_rel);
  sum_abs += later.sum_abs;
  max_ulp = std::max(max_ulp, later.max_ulp);
  if (!first || (later.first && later.first->is_beyond && !first->is_beyond)) first = later.first;
}

}  // namespace kv
