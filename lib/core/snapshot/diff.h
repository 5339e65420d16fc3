// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by diff.cc, diff_values.cc

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Comparison of two caches of any formats: geometry first, then every value.

struct DiffOptions {
  // Tolerance. If unset, stored bits are compared, so that -0, NaN payloads and element types
  // count; if set, values, which may differ by this much.
  std::optional<double> atol = {};
  // If set, returns the `atol` of each tensor.
  std::function<std::optional<double>(uint32_t layer, bool is_value)> atol_of = {};
  bool keys = true, values = true;
  // If above 0, also records where tensors differ, in at most this many ranges of tokens.
  uint64_t token_bins = 0;
};

// One differing value, on both sides.
struct DifferingValue {
  uint64_t token = 0;
  uint32_t head = 0, dim = 0;
  double a = 0, b = 0;
  uint64_t a_bits = 0, b_bits = 0;  // bits as stored; 0 for block types
  bool is_beyond = false;
};

// The result of comparing two tensors value by value, over the common range. In block types a whole
// block counts as one value, because it is the smallest unit with bytes of its own.
struct TensorDiff {
  DType a_dtype = DType::kF16, b_dtype = DType::kF16;
  bool heads_known = true;  // false: `first` counts channels of one head
  uint64_t values = 0;      // number of values compared
  // values with different stored bits; across element types: different values
  uint64_t different = 0;
  uint64_t beyond = 0;  // values among `different` beyond the tolerance
  // values among `different` with NaN or infinity on a side, which have no distance
  uint64_t not_finite = 0;
  double max_abs = 0;  // over finite pairs
  double max_rel = 0;  // relative to |b|
  double sum_abs = 0;
  uint64_t max_ulp = 0;  // 0 unless both sides have the same floating type
  // first value beyond the tolerance, or else the first different one
  std::optional<DifferingValue> first = {};

  bool same_dtype() const { return a_dtype == b_dtype; }
  bool has_ulp() const;
  // Distances exclude pairs with a NaN or infinity on one side; they are NaN if no pair is left.
  uint64_t measured() const { return values - not_finite; }
  double largest_abs() const { return measured() == 0 ? NAN : max_abs; }
  double largest_rel() const { return measured() == 0 ? NAN : max_rel; }
  // Also returns nullopt if the types differ or have no units in the last place.
  std::optional<uint64_t> largest_ulp() const {
    return has_ulp() && measured() > 0 ? std::optional(max_ulp) : std::nullopt;
  }
  double mean_abs() const {
    return measured() == 0 ? NAN : sum_abs / static_cast<double>(measured());
  }
  // Adds the result for later tokens of the same tensors.
  void Add(const TensorDiff& later);
};

struct LayerDiff {
  uint32_t layer = 0;
  std::optional<TensorDiff> k = {}, v = {};  // nullopt if a side lacks the tensor
  // Ranges of SnapshotDiff::bin_tokens tokens, the last one shorter; empty if no bit differs.
  std::vector<TensorDiff> k_bins = {}, v_bins = {};
};

enum class DiffVerdict {
  kIdentical,    // every stored bit is equal, whatever the order in which the formats store them
  kEqualValues,  // different element types, but every value is equal
  kWithinTolerance,
  kDifferent,
};
std::string_view Name(DiffVerdict verdict);  // "identical", "equal_values" ...

struct SnapshotDiff {
  std::vector<std::string> structure;  // differences of geometry, positions or token ids
  std::vector<std::string> notes;      // remarks that are not differences
  std::vector<LayerDiff> layers;       // layers that both snapshots have, by number
  bool by_value = false;               // a tolerance was given
  uint64_t bin_tokens = 0;             // 0 unless bins were requested
  uint64_t tokens = 0;                 // compared tokens of the longest tensor

  TensorDiff Total() const;  // counts and maxima over all layers; `first` is the earliest layer's
  DiffVerdict verdict() const;
  // Equal values of different element types count as equal only if a tolerance was given.
  bool equal() const;
};

// Compares in chunks of bounded size, on all threads of the pool; the result does not depend on
// their number. Heads that only one side knows also divide the rows of the other.
SnapshotDiff DiffSnapshots(const Snapshot& a, const Snapshot& b, const DiffOptions& options,
                           ThreadPool& pool, Progress* progress = nullptr);

// Rows of the same tokens from both sides, in the order [token][head][dim].
struct RowPair {
  ByteSpan a, b;
  DType a_dtype = DType::kF16, b_dtype = DType::kF16;
  uint64_t first_token = 0;
  uint32_t heads = 0, head_dim = 0;
};

// Compares rows of the same element type by their stored bits.
TensorDiff DiffBits(const RowPair& rows, std::optional<double> atol);

// Compares rows of any types: `a` and `b` are their values, widened without loss. NaNs are equal
// whatever their payloads; 0 and -0 differ.
TensorDiff DiffWidened(const RowPair& rows, std::span<const double> a, std::span<const double> b,
                       std::optional<double> atol);

// Converts values of any type to double; exact except for 64-bit integers.
void ToDoubles(DType dtype, ByteSpan bytes, std::vector<double>& out);

}  // namespace kv
