// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/diff_match.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lib/core/snapshot/hadamard.h"
#include "lib/core/snapshot/select.h"

namespace kv {
namespace {

constexpr size_t kNamedTensors = 3;  // before a message only counts them

// Finds what to compare, and says what cannot be.
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
    if (a_.layers.empty() && b_.layers.empty()) diff_.notes.emplace_back("neither holds a layer");
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

  // Divides rows of `a` as `b` knows them. False where they do not fit.
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
      piece.head = {piece.dim.step * a.units_per_head()};  // rows were one head, plain along dim
    return true;
  }

  void NoteRotation(const TensorPair& pair) {
    const auto state = [&](const Snapshot& snapshot) {
      return pair.is_value ? snapshot.v_hadamard : snapshot.k_hadamard;
    };
    if (pair.diff.same_dtype() && state(a_) == state(b_)) return;
    if (pair.diff.same_dtype() && pair.one_is_turned()) {
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
    if (!with_extensions) Note("positions in more than one dimension are kept differently");
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
  std::map<std::string, std::vector<std::string>> problems_;  // text, where
  std::vector<TensorPair> pairs_;
};

}  // namespace

bool TensorPair::one_is_turned() const {
  const auto state = [&](const Snapshot& snapshot) {
    return is_value ? snapshot.v_hadamard : snapshot.k_hadamard;
  };
  const bool known = state(*a_snapshot) != HadamardState::kUnknown &&
                     state(*b_snapshot) != HadamardState::kUnknown;
  return known && IsHadamardTransformed(*a_snapshot, a, is_value) !=
                      IsHadamardTransformed(*b_snapshot, b, is_value);
}

std::vector<TensorPair> MatchSnapshots(const Snapshot& a, const Snapshot& b,
                                       const DiffOptions& options, SnapshotDiff& diff) {
  return Matcher(a, b, options, diff).Run();
}

}  // namespace kv
