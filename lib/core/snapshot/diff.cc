// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <vector>

#include "lib/core/base/arena.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/select.h"

namespace kv {

namespace {

// Two tensors with equal numbers of rows and heads, and the destination of their result.
struct TensorPair {
  const Snapshot* a_snapshot = nullptr;
  const Snapshot* b_snapshot = nullptr;
  size_t slot = 0;  // index into SnapshotDiff::layers
  bool is_value = false;
  KvTensor a = {}, b = {};
  TensorDiff diff = {};
  std::vector<TensorDiff> bins = {};
  bool is_settled = false;  // true once the bytes were found equal

  // Returns true if one side is known to be Hadamard-transformed and the other known not to be:
  // equal bytes then mean different values. If either is unknown, bytes are compared as stored.
  bool one_is_transformed() const;
};

constexpr size_t kNamedTensors = 3;  // number that a message names; the others are only counted

// Pairs up the tensors to compare, and records what cannot be compared.
class Matcher {
 public:
  Matcher(const Snapshot& a, const Snapshot& b, const DiffOptions& options, SnapshotDiff& diff)
      : a_(a), b_(b), options_(options), diff_(diff) {}

  std::vector<TensorPair> Run() {
    MatchLayers();
    for (auto& [text, where] : problems_) {
      const size_t count = where.size();
      if (count > kNamedTensors) where.resize(1);
      diff_.structure.push_back(fmt::format("{}: {}",
                                            count > kNamedTensors
                                                ? fmt::format("{} and {} more", where[0], count - 1)
                                                : fmt::format("{}", fmt::join(where, ", ")),
                                            text));
    }
    CompareCells();
    CompareTokens();
    NoteWords();
    return std::move(pairs_);
  }

 private:
  void MatchLayers() {
    std::map<uint32_t, std::vector<const LayerKv*>> others;
    for (const LayerKv& layer : b_.layers) others[layer.index].push_back(&layer);
    std::vector<uint32_t> only_a, only_b;
    for (const LayerKv& layer : a_.layers) {
      auto& same = others[layer.index];
      if (same.empty()) {
        only_a.push_back(layer.index);
        continue;
      }
      MatchLayer(layer, *same.front());
      same.erase(same.begin());
    }
    for (const auto& [index, left] : others) only_b.insert(only_b.end(), left.size(), index);
    const auto missing = [&](const std::vector<uint32_t>& layers, char side) {
      if (layers.empty()) return;
      diff_.structure.push_back(fmt::format("layer{} {}: only in {}", layers.size() == 1 ? "" : "s",
                                            fmt::join(layers, ", "), side));
    };
    missing(only_a, 'A');
    missing(only_b, 'B');
    if (a_.layers.empty() && b_.layers.empty())
      diff_.notes.emplace_back("neither snapshot has a layer");
  }

  void MatchLayer(const LayerKv& a, const LayerKv& b) {
    diff_.layers.push_back({.layer = a.index});
    const auto part = [&](const KvTensor* x, const KvTensor* y, bool is_value) {
      const std::string where = fmt::format("layer {} {}", a.index, is_value ? 'V' : 'K');
      if (x == nullptr && y == nullptr) return;
      if (x == nullptr || y == nullptr) {
        problems_[y == nullptr ? "only in A" : "only in B"].push_back(where);
        return;
      }
      MatchTensor(*x, *y, is_value, where);
    };
    if (options_.keys) part(a.has_k() ? &a.k : nullptr, b.has_k() ? &b.k : nullptr, false);
    if (options_.values) part(a.v ? &*a.v : nullptr, b.v ? &*b.v : nullptr, true);
  }

  void MatchTensor(KvTensor a, KvTensor b, bool is_value, const std::string& where) {
    if (!AlignHeads(a, b) || !AlignHeads(b, a) || a.heads != b.heads || a.head_dim != b.head_dim) {
      problems_[Shape(a) + " and " + Shape(b)].push_back(where);
      return;
    }
    const uint64_t tokens = std::min(a.tokens(), b.tokens());
    if (a.tokens() != b.tokens()) {
      problems_[fmt::format("{} and {} tokens, the first {} compared", a.tokens(), b.tokens(),
                            tokens)]
          .push_back(where);
      a = SliceTokens(a, 0, tokens);
      b = SliceTokens(b, 0, tokens);
    }
    TensorPair& pair = pairs_.emplace_back();
    pair.a_snapshot = &a_;
    pair.b_snapshot = &b_;
    pair.slot = diff_.layers.size() - 1;
    pair.is_value = is_value;
    pair.a = std::move(a);
    pair.b = std::move(b);
    pair.diff.a_dtype = pair.a.dtype;
    pair.diff.b_dtype = pair.b.dtype;
    pair.diff.heads_known = pair.a.heads_known;
    NoteRotation(pair);
  }

  static std::string Shape(const KvTensor& tensor) {
    return tensor.heads_known ? fmt::format("{} heads of {}", tensor.heads, tensor.head_dim)
                              : fmt::format("rows of {}", tensor.channels());
  }

  // Divides rows of `a` into heads as `b` does. Returns false if they do not fit.
  static bool AlignHeads(KvTensor& a, const KvTensor& b) {
    if (a.heads_known || !b.heads_known) return true;
    const auto plain = [](const StridedPiece& piece) { return piece.dim.group == UINT64_MAX; };
    if (!std::all_of(a.pieces.begin(), a.pieces.end(), plain) || a.channels() != b.channels() ||
        b.head_dim % Info(a.dtype).block_elements != 0)
      return false;
    a.heads = b.heads;
    a.head_dim = b.head_dim;
    a.heads_known = true;
    for (StridedPiece& piece : a.pieces)
      // a row was one head with a plain stride along dim
      piece.head = {piece.dim.step * a.units_per_head()};
    return true;
  }

  void NoteRotation(const TensorPair& pair) {
    const auto state = [&](const Snapshot& snapshot) {
      return pair.is_value ? snapshot.v_hadamard : snapshot.k_hadamard;
    };
    if (pair.diff.same_dtype() && state(a_) == state(b_)) return;
    if (pair.diff.same_dtype() && pair.one_is_transformed()) {
      Note(fmt::format("{} is stored Hadamard-rotated in one of them: compared as values",
                       pair.is_value ? 'V' : 'K'));
    }
    const auto look = [&](const Snapshot& snapshot, const KvTensor& tensor, char side) {
      const HadamardState state = pair.is_value ? snapshot.v_hadamard : snapshot.k_hadamard;
      if (!IsBlockQuantised(tensor.dtype) || state == HadamardState::kNo) return;
      if (state == HadamardState::kYes && tensor.heads_known) return;
      Note(fmt::format(
          "it is unknown whether {}'s quantised {} is stored Hadamard-rotated: compared as stored",
          side, pair.is_value ? 'V' : 'K'));
    };
    look(a_, pair.a, 'A');
    look(b_, pair.b, 'B');
  }

  void Note(std::string text) {
    if (std::find(diff_.notes.begin(), diff_.notes.end(), text) == diff_.notes.end())
      diff_.notes.push_back(std::move(text));
  }

  void OnlyIn(std::string_view what, bool in_a) {
    Note(fmt::format("{} only in {}", what, in_a ? 'A' : 'B'));
  }

  void CompareCells() {
    if (a_.cell_groups.empty() != b_.cell_groups.empty())
      return OnlyIn("positions", !a_.cell_groups.empty());
    for (const CellGroup& a : a_.cell_groups) {
      const auto b = std::find_if(b_.cell_groups.begin(), b_.cell_groups.end(),
                                  [&](const CellGroup& group) { return group.group == a.group; });
      if (b != b_.cell_groups.end()) CompareGroup(a, *b);
    }
  }

  void CompareGroup(const CellGroup& a, const CellGroup& b) {
    const std::string of = a.group.empty() ? "" : fmt::format(" of the {} cache", a.group);
    if (a.cells.size() != b.cells.size()) {
      diff_.structure.push_back(
          fmt::format("cells{}: {} and {}", of, a.cells.size(), b.cells.size()));
    }
    const auto has_ids = [](const CellGroup& group) {
      return std::any_of(group.cells.begin(), group.cells.end(),
                         [](const Cell& cell) { return !cell.sequences.empty(); });
    };
    const bool with_ids = has_ids(a) && has_ids(b);
    if (has_ids(a) != has_ids(b)) OnlyIn("sequence ids", has_ids(a));
    const bool with_extensions = a.extension_words == b.extension_words;
    if (!with_extensions) Note("positions with several dimensions are stored differently");
    const auto extension = [](const CellGroup& group, size_t i) {
      return group.extensions.begin() + static_cast<std::ptrdiff_t>(i * group.extension_words);
    };
    const auto ids = [](const Cell& cell) {
      return fmt::format("{}", fmt::join(cell.sequences, ","));
    };
    for (size_t i = 0; i < std::min(a.cells.size(), b.cells.size()); ++i) {
      const Cell &x = a.cells[i], &y = b.cells[i];
      std::string text;
      if (x.position != y.position) {
        text = fmt::format("position {} and {}", x.position, y.position);
      } else if (x.stream != y.stream) {
        text = fmt::format("stream {} and {}", x.stream, y.stream);
      } else if (with_ids && !(x.sequences == y.sequences)) {
        text = fmt::format("sequences {} and {}", ids(x), ids(y));
      } else if (with_extensions &&
                 !std::equal(extension(a, i), extension(a, i + 1), extension(b, i))) {
        text = "further positions";
      } else {
        continue;
      }
      diff_.structure.push_back(fmt::format("cell {}{}: {}, the first that differs", i, of, text));
      return;
    }
  }

  void CompareTokens() {
    const auto &a = a_.tokens, &b = b_.tokens;
    if (a.empty() != b.empty()) return OnlyIn("token ids", !a.empty());
    if (a.size() != b.size())
      diff_.structure.push_back(fmt::format("token ids: {} and {}", a.size(), b.size()));
    const auto at = std::mismatch(a.begin(), a.begin() + std::min(a.size(), b.size()), b.begin());
    if (at.first == a.begin() + std::min(a.size(), b.size())) return;
    diff_.structure.push_back(fmt::format("token id {}: {} and {}, the first that differs",
                                          at.first - a.begin(), *at.first, *at.second));
  }

  void NoteWords() {
    const auto rotation = [](KeyRotation state) {
      return state == KeyRotation::kRotated ? "rotated" : "unrotated";
    };
    if (a_.key_rotation != b_.key_rotation && a_.key_rotation != KeyRotation::kUnknown &&
        b_.key_rotation != KeyRotation::kUnknown) {
      Note(fmt::format("keys are {} in A and {} in B", rotation(a_.key_rotation),
                       rotation(b_.key_rotation)));
    }
    if (!a_.model.empty() && !b_.model.empty() && a_.model != b_.model)
      Note(fmt::format("model: {} and {}", a_.model, b_.model));
  }

  const Snapshot &a_, &b_;
  const DiffOptions& options_;
  SnapshotDiff& diff_;
  std::map<std::string, std::vector<std::string>> problems_;  // text, places
  std::vector<TensorPair> pairs_;
};

bool TensorPair::one_is_transformed() const {
  const auto state = [&](const Snapshot& snapshot) {
    return is_value ? snapshot.v_hadamard : snapshot.k_hadamard;
  };
  const bool known = state(*a_snapshot) != HadamardState::kUnknown &&
                     state(*b_snapshot) != HadamardState::kUnknown;
  return known && IsHadamardTransformed(*a_snapshot, a, is_value) !=
                      IsHadamardTransformed(*b_snapshot, b, is_value);
}

// Pairs the tensors to compare. Tensors without a counterpart, and other differences (positions,
// token ids), go into the structure and notes of `diff`, which also gets its layers.
std::vector<TensorPair> MatchSnapshots(const Snapshot& a, const Snapshot& b,
                                       const DiffOptions& options, SnapshotDiff& diff) {
  return Matcher(a, b, options, diff).Run();
}

constexpr uint64_t kChunkBytes = 1 << 20;  // bytes of rows, per side and task
constexpr uint64_t kExtentBytes = 4 << 20;

uint64_t PlainExtent(const KvTensor& tensor, const StridedPiece& piece) {
  return (piece.tokens - 1) * piece.token.step + (tensor.heads - 1) * piece.head.step +
         (tensor.units_per_head() - 1) * piece.dim.step + tensor.unit_bytes();
}

// Returns true if both tensors store each value in the same place, so that their bytes can be
// compared without being interpreted.
bool SamePlaces(const KvTensor& a, const KvTensor& b) {
  if (a.dtype != b.dtype || a.pieces.size() != b.pieces.size()) return false;
  const auto same = [](const StridedPiece& x, const StridedPiece& y) {
    return x.tokens == y.tokens && x.token == y.token && x.head == y.head && x.dim == y.dim &&
           x.tokens > 0 && x.token.group == UINT64_MAX && x.head.group == UINT64_MAX &&
           x.dim.group == UINT64_MAX;
  };
  return std::equal(a.pieces.begin(), a.pieces.end(), b.pieces.begin(), same);
}

// Returns true if equal bytes mean equal values.
bool HoldSameBits(const TensorPair& pair) {
  return pair.diff.same_dtype() && !pair.one_is_transformed();
}

// Returns rows of a tensor: in place if they are contiguous, otherwise gathered.
ByteSpan GetRows(const KvTensor& tensor, uint64_t begin, uint64_t count, Bytes& scratch) {
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

// Converts rows to doubles. Block types are dequantised, and a Hadamard transform is undone if the
// snapshot has one.
void ReadValues(const Snapshot& snapshot, const KvTensor& tensor, bool is_value, ByteSpan rows,
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
  const RowPair rows{.a = GetRows(pair.a, begin, count, (*of_both)[0]),
                     .b = GetRows(pair.b, begin, count, (*of_both)[1]),
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
    ReadValues(*pair.a_snapshot, pair.a, pair.is_value, rows.a, a);
    ReadValues(*pair.b_snapshot, pair.b, pair.is_value, rows.b, b);
    diff = DiffWidened(rows, a, b, atol);
  }
  DropTokens(*pair.a_snapshot, pair.a, begin, count);
  DropTokens(*pair.b_snapshot, pair.b, begin, count);
  return diff;
}

// Settles the pairs whose stored bytes are equal. Only the others are compared value by value,
// which needs to know which value is where.
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

// Compares rows. With `bin_tokens`, also keeps the results for ranges of that many tokens.
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
  constexpr std::string_view kNames[] = {"identical", "equal_values", "within_tolerance",
                                         "different"};
  return kNames[static_cast<size_t>(verdict)];
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
