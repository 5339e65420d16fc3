// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/diff.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "lib/core/base/reuse.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/diff_match.h"
#include "lib/core/snapshot/diff_values.h"
#include "lib/core/snapshot/hadamard.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/residency.h"
#include "lib/core/snapshot/select.h"

namespace kv {
namespace {

constexpr uint64_t kChunkBytes = 1 << 20;  // of rows, per side and task
constexpr uint64_t kExtentBytes = 4 << 20;

uint64_t PlainExtent(const KvTensor& tensor, const StridedPiece& piece) {
  return (piece.tokens - 1) * piece.token.step + (tensor.heads - 1) * piece.head.step +
         (tensor.units_per_head() - 1) * piece.dim.step + tensor.unit_bytes();
}

// Whether both keep their values in the same places, so that their bytes can be compared without
// knowing what they are.
bool SamePlaces(const KvTensor& a, const KvTensor& b) {
  if (a.dtype != b.dtype || a.pieces.size() != b.pieces.size()) return false;
  const auto same = [](const StridedPiece& x, const StridedPiece& y) {
    return x.tokens == y.tokens && x.token == y.token && x.head == y.head && x.dim == y.dim &&
           x.tokens > 0 && x.token.group == UINT64_MAX && x.head.group == UINT64_MAX &&
           x.dim.group == UINT64_MAX;
  };
  return std::equal(a.pieces.begin(), a.pieces.end(), b.pieces.begin(), same);
}

// Whether equal bytes mean equal values.
bool HoldSameBits(const TensorPair& pair) {
  return pair.diff.same_dtype() && !pair.one_is_turned();
}

// Rows of a tensor, in place where they lie one after another, else gathered.
ByteSpan RowsOf(const KvTensor& tensor, uint64_t begin, uint64_t count, Bytes& scratch) {
  const KvTensor part = SliceTokens(tensor, begin, count);
  if (part.pieces.size() == 1) {
    const StridedPiece& piece = part.pieces[0];
    const KvTensor rows = ContiguousTensor(piece.data, part.dtype, count, part.heads, part.head_dim,
                                           Order::kTokenHeadDim);
    if (SamePlaces(part, rows)) return {piece.data, count * part.row_bytes()};
  }
  scratch.resize(count * tensor.row_bytes());
  Gather(tensor, begin, count, 0, tensor.heads, Order::kTokenHeadDim, scratch);
  return scratch;
}

// The values of rows as doubles. Block types are dequantised and, where the snapshot says that the
// engine stored them rotated, turned back.
void ValuesOf(const Snapshot& snapshot, const KvTensor& tensor, bool is_value, ByteSpan rows,
              std::vector<double>& out) {
  if (IsBlockQuantised(tensor.dtype) && tensor.heads_known) {
    std::vector<float> values(rows.size() / tensor.unit_bytes() *
                              Info(tensor.dtype).block_elements);
    ToFloats(tensor.dtype, rows, values);
    UndoHadamard(snapshot, tensor, is_value, values);
    out.assign(values.begin(), values.end());
  } else {
    ToDoubles(tensor.dtype, rows, out);
  }
}

TensorDiff DiffTokens(const TensorPair& pair, uint64_t begin, uint64_t count,
                      std::optional<double> atol) {
  static Reuse<std::array<Bytes, 2>> scratch;
  const Reuse<std::array<Bytes, 2>>::Lease of_both(scratch);
  const RowPair rows{.a = RowsOf(pair.a, begin, count, (*of_both)[0]),
                     .b = RowsOf(pair.b, begin, count, (*of_both)[1]),
                     .a_dtype = pair.a.dtype,
                     .b_dtype = pair.b.dtype,
                     .first_token = begin,
                     .heads = pair.a.heads,
                     .head_dim = pair.a.head_dim};
  TensorDiff diff;
  if (HoldSameBits(pair)) {
    diff = DiffBits(rows, atol);
  } else {
    std::vector<double> a, b;
    ValuesOf(*pair.a_snapshot, pair.a, pair.is_value, rows.a, a);
    ValuesOf(*pair.b_snapshot, pair.b, pair.is_value, rows.b, b);
    diff = DiffWidened(rows, a, b, atol);
  }
  DropTokens(*pair.a_snapshot, pair.a, begin, count);
  DropTokens(*pair.b_snapshot, pair.b, begin, count);
  return diff;
}

// Settles the pairs whose bytes are equal as they lie. Unequal ones are walked later: only then
// does it matter which value is where.
void CompareExtents(std::vector<TensorPair>& pairs, ThreadPool& pool, Progress& progress) {
  struct Task {
    size_t pair;
    const std::byte *a, *b;
    uint64_t size;
  };
  std::vector<Task> tasks;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const TensorPair& pair = pairs[i];
    if (!SamePlaces(pair.a, pair.b) || !HoldSameBits(pair)) continue;
    for (size_t p = 0; p < pair.a.pieces.size(); ++p) {
      const uint64_t extent = PlainExtent(pair.a, pair.a.pieces[p]);
      for (uint64_t at = 0; at < extent; at += kExtentBytes) {
        tasks.push_back({i, pair.a.pieces[p].data + at, pair.b.pieces[p].data + at,
                         std::min(kExtentBytes, extent - at)});
      }
    }
  }
  std::vector<std::atomic<bool>> differs(pairs.size());
  std::vector<std::atomic<uint64_t>> left(pairs.size());
  for (const Task& task : tasks) ++left[task.pair];
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i].is_settled = left[i] > 0;
  pool.ParallelFor(tasks.size(), [&](uint64_t i) {
    const Task& task = tasks[i];
    const TensorPair& pair = pairs[task.pair];
    if (!differs[task.pair] && std::memcmp(task.a, task.b, task.size) != 0)
      differs[task.pair] = true;
    if (--left[task.pair] > 0) return;
    if (!differs[task.pair]) progress.Advance(pair.a.bytes());
    DropTensor(*pair.a_snapshot, pair.a);
    DropTensor(*pair.b_snapshot, pair.b);
  });
  for (size_t i = 0; i < pairs.size(); ++i) {
    TensorPair& pair = pairs[i];
    pair.is_settled = pair.is_settled && !differs[i];
    if (pair.is_settled) pair.diff.values = pair.a.tokens() * pair.a.channels();
  }
}

using AtolOfPair = std::function<std::optional<double>(const TensorPair& pair)>;

// With `bin_tokens`, the results of ranges of so many tokens are kept, too.
void CompareRows(std::vector<TensorPair>& pairs, const AtolOfPair& atol, uint64_t bin_tokens,
                 ThreadPool& pool, Progress& progress) {
  struct Task {
    size_t pair;
    uint64_t begin, count;
    TensorDiff diff = {};
  };
  std::vector<Task> tasks;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const TensorPair& pair = pairs[i];
    if (pair.is_settled) continue;
    const uint64_t row = std::max(pair.a.row_bytes(), pair.b.row_bytes());
    const uint64_t tokens = pair.a.tokens(), step = std::max<uint64_t>(1, kChunkBytes / row);
    for (uint64_t begin = 0, count = 0; begin < tokens; begin += count) {
      count = std::min(step, tokens - begin);
      if (bin_tokens > 0) count = std::min(count, bin_tokens - begin % bin_tokens);
      tasks.push_back({i, begin, count});
    }
  }
  pool.ParallelFor(tasks.size(), [&](uint64_t i) {
    Task& task = tasks[i];
    const TensorPair& pair = pairs[task.pair];
    task.diff = DiffTokens(pair, task.begin, task.count, atol(pair));
    progress.Advance(task.count * pair.a.row_bytes());
    if (task.begin + task.count < pair.a.tokens()) return;
    DropTensor(*pair.a_snapshot, pair.a);
    DropTensor(*pair.b_snapshot, pair.b);
  });
  for (const Task& task : tasks) {
    TensorPair& pair = pairs[task.pair];
    pair.diff.Add(task.diff);
    if (bin_tokens == 0) continue;
    pair.bins.resize((pair.a.tokens() + bin_tokens - 1) / bin_tokens);
    pair.bins[task.begin / bin_tokens].Add(task.diff);
  }
}

class NoProgress : public Progress {
  void Begin(uint64_t) override {}
  void Advance(uint64_t) override {}
};

}  // namespace

SnapshotDiff DiffSnapshots(const Snapshot& a, const Snapshot& b, const DiffOptions& options,
                           ThreadPool& pool, Progress* progress) {
  a.CheckContent();
  b.CheckContent();
  SnapshotDiff diff;
  diff.by_value = options.atol.has_value() || options.atol_of;
  std::vector<TensorPair> pairs = MatchSnapshots(a, b, options, diff);
  NoProgress silent;
  Progress& shown = progress != nullptr ? *progress : silent;
  uint64_t total = 0;
  for (const TensorPair& pair : pairs) {
    total += pair.a.bytes();
    diff.tokens = std::max(diff.tokens, pair.a.tokens());
  }
  if (options.token_bins > 0) {
    diff.bin_tokens = std::max<uint64_t>(
        1, diff.tokens / options.token_bins + (diff.tokens % options.token_bins != 0));
  }
  shown.Begin(total);
  CompareExtents(pairs, pool, shown);
  const auto atol = [&](const TensorPair& pair) {
    return options.atol_of ? options.atol_of(diff.layers[pair.slot].layer, pair.is_value)
                           : options.atol;
  };
  CompareRows(pairs, atol, diff.bin_tokens, pool, shown);
  for (const TensorPair& pair : pairs) {
    LayerDiff& layer = diff.layers[pair.slot];
    (pair.is_value ? layer.v : layer.k) = pair.diff;
    (pair.is_value ? layer.v_bins : layer.k_bins) = pair.bins;
  }
  return diff;
}

std::string_view Name(DiffVerdict verdict) {
  switch (verdict) {
    case DiffVerdict::kIdentical:
      return "identical";
    case DiffVerdict::kEqualValues:
      return "equal_values";
    case DiffVerdict::kWithinTolerance:
      return "within_tolerance";
    case DiffVerdict::kDifferent:
      return "different";
  }
  return "?";
}

TensorDiff SnapshotDiff::Total() const {
  TensorDiff total;
  bool any = false;
  for (const LayerDiff& layer : layers) {
    for (const auto* part : {&layer.k, &layer.v}) {
      if (!*part) continue;
      if (!any) {
        total.a_dtype = (*part)->a_dtype;
        total.b_dtype = (*part)->b_dtype;
        any = true;
      }
      total.Add(**part);
    }
  }
  return total;
}

DiffVerdict SnapshotDiff::verdict() const {
  const TensorDiff total = Total();
  if (!structure.empty() || total.beyond > 0) return DiffVerdict::kDifferent;
  if (total.different > 0) return DiffVerdict::kWithinTolerance;
  const auto same = [](const std::optional<TensorDiff>& part) {
    return !part || part->same_dtype();
  };
  const bool same_types = std::all_of(layers.begin(), layers.end(), [&](const LayerDiff& layer) {
    return same(layer.k) && same(layer.v);
  });
  return same_types ? DiffVerdict::kIdentical : DiffVerdict::kEqualValues;
}

bool SnapshotDiff::equal() const {
  switch (verdict()) {
    case DiffVerdict::kIdentical:
    case DiffVerdict::kWithinTolerance:
      return true;
    case DiffVerdict::kEqualValues:
      return by_value;
    case DiffVerdict::kDifferent:
      return false;
  }
  return false;
}

}  // namespace kv
