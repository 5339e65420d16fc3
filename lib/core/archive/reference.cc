// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "lib/core/base/bytes.h"
#include "lib/core/codec/context/lms.h"
#include "lib/core/codec/halves.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

Error Differs(const ReferenceRun& run, const Reference& reference, std::string_view how) {
  return Error(Finding::kReferenceDiffers, "layer {} {} of '{}' {}", run.layer,
               run.is_value ? 'V' : 'K', Printable(reference.name.file), how);
}

}  // namespace

RowsOfReferences::Found RowsOfReferences::Find(const ReferenceRun& run, uint64_t elements) const {
  const auto missing = [] {
    return Error(Finding::kReferenceMissing, "the chunk needs rows of another cache")
        .Hint("give the cache that the archive was coded against with --base");
  };
  if (references_.empty()) throw missing();  // the caller supplied no references
  if (run.reference >= references_.size()) {
    throw Error(Finding::kBadFrame, "the chunk names reference {} of {}", run.reference,
                references_.size());
  }
  const Reference* reference = references_[run.reference].get();
  if (reference == nullptr) throw missing();
  if (reference->missing) throw *reference->missing;
  const LayerKv* layer = reference->snapshot.Find(run.layer);
  if (layer == nullptr || (run.is_value && !layer->v))
    throw Differs(run, *reference, "does not exist");
  const KvTensor& tensor = run.is_value ? *layer->v : layer->k;
  const uint64_t tokens = tensor.tokens();
  if (run.first_token > tokens || run.rows > tokens - run.first_token)
    throw Differs(run, *reference, fmt::format("has only {} tokens", tokens));
  if (tensor.channels() != elements) {
    throw Differs(run, *reference,
                  fmt::format("has {} channels, not {}", tensor.channels(), elements));
  }
  return {*reference, tensor, static_cast<size_t>(layer - reference->snapshot.layers.data())};
}

void RowsOfReferences::Fill(const Found& found, const ReferenceRun& run,
                            std::span<std::byte> rows) {
  const Reference& reference = found.reference;
  if (reference.rows == nullptr) {
    return Gather(found.tensor, run.first_token, run.rows, 0, found.tensor.heads,
                  Order::kTokenHeadDim, rows);
  }
  try {
    reference.rows->Read(found.layer_position, run.is_value, run.first_token, run.rows, rows);
  } catch (const Error& error) {
    if (error.finding() == Finding::kReferenceMissing ||
        error.finding() == Finding::kProfileMissing) {
      throw;
    }
    throw Differs(run, reference, fmt::format("cannot be read: {}", error.message()));
  }
}

DType RowsOfReferences::Read(const ReferenceRun& run, uint64_t elements, Bytes& rows) const {
  const Found found = Find(run, elements);
  rows.resize(CheckedMul(run.rows, found.tensor.row_bytes(), "rows of a reference"));
  Fill(found, run, rows);
  return found.tensor.dtype;
}

void RowsOfReferences::ReadEqual(const ReferenceRun& run, DType dtype, uint64_t elements,
                                 std::span<std::byte> rows) const {
  const Found found = Find(run, elements);
  if (found.tensor.dtype != dtype || run.rows * found.tensor.row_bytes() != rows.size())
    throw Differs(run, found.reference, "has rows of another size");
  Fill(found, run, rows);
}

bool ReferencePlan::Uses(size_t reference) const {
  for (const Group& group : groups_) {
    for (const TokenRun& run : group.runs) {
      if (run.reference == reference) return true;
    }
  }
  return false;
}

void ReferencePlan::Renumber(const std::vector<uint16_t>& places) {
  for (Group& group : groups_) {
    for (TokenRun& run : group.runs) run.reference = places[run.reference];
    for (auto& [layer, there] : group.layers) {
      std::vector<std::optional<uint32_t>> kept(there.size());
      for (size_t i = 0; i < there.size(); ++i) kept[places[i]] = there[i];
      there = std::move(kept);
    }
  }
}

const ReferencePlan::Group* ReferencePlan::FindGroup(uint32_t layer, size_t& place) const {
  for (const Group& group : groups_) {
    for (place = 0; place < group.layers.size(); ++place) {
      if (group.layers[place].first == layer) return &group;
    }
  }
  return nullptr;
}

std::vector<ReferenceRun> ReferencePlan::ListRuns(uint32_t layer, bool is_value, uint64_t begin,
                                                  uint64_t count) const {
  std::vector<ReferenceRun> runs;
  size_t place = 0;
  const Group* group = FindGroup(layer, place);
  if (group == nullptr) return runs;
  for (const TokenRun& run : group->runs) {
    const std::optional<uint32_t>& there = group->layers[place].second[run.reference];
    const uint64_t from = std::max(begin, run.here),
                   to = std::min(begin + count, run.here + run.tokens);
    if (!there || from >= to) continue;
    runs.push_back({.reference = run.reference,
                    .is_value = is_value,
                    .layer = *there,
                    .first_row = static_cast<uint32_t>(from - begin),
                    .rows = static_cast<uint32_t>(to - from),
                    .first_token = run.there + from - run.here,
                    .position_shift = is_value ? 0 : run.position_shift});
  }
  return runs;
}

const Rotation& ReferencePlan::LayerRotation(uint32_t layer) const {
  static const Rotation kNone;
  size_t place = 0;
  const Group* group = FindGroup(layer, place);
  return group == nullptr ? kNone : group->rotation;
}

// Finds tokens of a snapshot that are also in a reference.

namespace {

// Numbers of equal consecutive tokens that start a match, and that make a match worth its bytes.
constexpr uint64_t kSeedTokens = 8, kLeastTokens = 16;
// Number of equal seeds that are tried.
constexpr size_t kMostSeeds = 4;
// A match of fewer than 1 in this many of a cache's tokens counts as coincidence or padding.
constexpr uint64_t kOneInMatches = 20;
constexpr uint64_t kRotationRows = 128;
// A reference whose sampled rows are kClearlyNearer times closer is preferred to one that shares
// more tokens.
constexpr uint64_t kSampledTokens = 8;
constexpr float kClearlyNearer = 2;

// Labels that identify the tokens of a cache, and their positions.
struct Labels {
  std::vector<uint64_t> of;
  std::vector<int64_t> positions;
};

const CellGroup* FindCells(const Snapshot& snapshot, const LayerKv& layer) {
  for (const CellGroup& group : snapshot.cell_groups) {
    if (group.group == layer.group || snapshot.cell_groups.size() == 1) {
      return group.cells.size() == layer.k.tokens() ? &group : nullptr;
    }
  }
  return nullptr;
}

std::vector<int64_t> ListPositions(const Snapshot& snapshot, const LayerKv& layer) {
  std::vector<int64_t> positions(layer.k.tokens());
  const CellGroup* cells = FindCells(snapshot, layer);
  for (size_t i = 0; i < positions.size(); ++i)
    positions[i] = cells == nullptr ? static_cast<int64_t>(i) : cells->cells[i].position;
  return positions;
}

// Returns the token ids in the order of the cache, if every position occurs exactly once.
std::optional<std::vector<uint64_t>> SortTokenIds(const Snapshot& snapshot,
                                                  const std::vector<int64_t>& positions) {
  if (snapshot.tokens.empty() || positions.empty()) return std::nullopt;
  const int64_t first = snapshot.tokens.size() == positions.size() ? positions[0] : 0;
  std::vector<uint64_t> ids;
  for (const int64_t position : positions) {
    const int64_t at = position - first;
    if (at < 0 || at >= static_cast<int64_t>(snapshot.tokens.size())) return std::nullopt;
    if (!ids.empty() && position <= positions[ids.size() - 1]) return std::nullopt;
    ids.push_back(static_cast<uint32_t>(snapshot.tokens[static_cast<size_t>(at)]));
  }
  return ids;
}

bool HasBytes(const KvTensor& tensor) {
  return !tensor.pieces.empty() &&
         std::all_of(tensor.pieces.begin(), tensor.pieces.end(),
                     [](const StridedPiece& piece) { return piece.data != nullptr; });
}

bool AreComparable(const std::optional<KvTensor>& a, const std::optional<KvTensor>& b) {
  const auto is_float = [](DType dtype) {
    return AreHalves(dtype) || dtype == DType::kF32 || IsBlockQuantised(dtype);
  };
  return a && b && HasBytes(*a) && HasBytes(*b) && a->channels() == b->channels() &&
         is_float(a->dtype) && is_float(b->dtype);
}

// Returns hashes of the first layer's V, whose values depend on the token alone.
std::optional<std::vector<uint64_t>> HashContent(const LayerKv& layer) {
  if (!layer.v || !HasBytes(*layer.v)) return std::nullopt;
  constexpr uint64_t kPiece = 1024;
  std::vector<uint64_t> hashes;
  for (uint64_t at = 0; at < layer.v->tokens(); at += kPiece) {
    const uint64_t count = std::min(kPiece, layer.v->tokens() - at);
    const Bytes rows = Gather(*layer.v, at, count, Order::kTokenHeadDim);
    for (uint64_t i = 0; i < count; ++i)
      hashes.push_back(
          Hash64(ByteSpan(rows).subspan(i * (rows.size() / count), rows.size() / count)));
  }
  return hashes;
}

bool OftenMeet(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  const std::unordered_set<uint64_t> known(b.begin(), b.end());
  const auto meet =
      std::count_if(a.begin(), a.end(), [&](uint64_t x) { return known.count(x) != 0; });
  return static_cast<uint64_t>(meet) * kOneInMatches >= a.size();
}

uint64_t SeedAt(const std::vector<uint64_t>& labels, uint64_t at) {
  uint64_t hash = 0;
  for (uint64_t i = 0; i < kSeedTokens; ++i) {
    hash = (hash ^ labels[at + i]) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

// A snapshot and a reference, both labelled in the same way.
struct Pair {
  uint16_t reference = 0;
  Labels here, there;
  std::unordered_map<uint64_t, std::vector<uint64_t>> seeds;
  const KvTensor *v_here = nullptr,
                 *v_there = nullptr;  // V of a middle layer, if the cache has V

  // Returns the distance of a run's values from the reference's, relative to their size.
  float MeasureDistance(const TokenRun& run) const {
    if (v_here == nullptr || run.tokens == 0) return 1;
    float apart = 0, size = 1e-30f;
    for (uint64_t i = 0; i < kSampledTokens; ++i) {
      const uint64_t token = run.tokens * (2 * i + 1) / (2 * kSampledTokens);
      const std::vector<float> a = GatherFloats(*v_here, run.here + token, 1, Order::kTokenHeadDim);
      const std::vector<float> b =
          GatherFloats(*v_there, run.there + token, 1, Order::kTokenHeadDim);
      for (size_t c = 0; c < a.size(); ++c) {
        const float distance = std::fabs(a[c] - b[c]);
        if (!(distance <= kMostDistance)) continue;  // also skips distances that are NaN
        apart += distance;
        size += std::fabs(a[c]);
      }
    }
    return apart / size;
  }
  static constexpr float kMostDistance = 1e30f;

  void FindSeeds() {
    for (uint64_t at = 0; at + kSeedTokens <= there.of.size(); ++at) {
      std::vector<uint64_t>& places = seeds[SeedAt(there.of, at)];
      if (places.size() < kMostSeeds) places.push_back(at);
    }
  }
  // Returns the run that begins with these two tokens.
  TokenRun From(uint64_t a, uint64_t b) const {
    TokenRun run{.reference = reference, .here = a, .there = b};
    if (a >= here.of.size() || b >= there.of.size()) return run;
    const int64_t shift = here.positions[a] - there.positions[b];
    while (a < here.of.size() && b < there.of.size() && here.of[a] == there.of[b] &&
           here.positions[a] - there.positions[b] == shift) {
      ++a, ++b;
    }
    run.tokens = shift == static_cast<int32_t>(shift) ? a - run.here : 0;
    run.position_shift = static_cast<int32_t>(shift);
    return run;
  }
};

std::optional<Pair> Compare(const Snapshot& snapshot, const LayerKv& layer,
                            const Reference& reference, const LayerKv& there) {
  Pair pair;
  pair.here.positions = ListPositions(snapshot, layer);
  pair.there.positions = ListPositions(reference.snapshot, there);
  const auto take = [&](std::optional<std::vector<uint64_t>> a,
                        std::optional<std::vector<uint64_t>> b) {
    if (!a || !b || !OftenMeet(*a, *b)) return false;
    pair.here.of = *std::move(a);
    pair.there.of = *std::move(b);
    return true;
  };
  const auto as_labels = [](const std::vector<int64_t>& positions) {
    return std::vector<uint64_t>(positions.begin(), positions.end());
  };
  const auto ids = SortTokenIds(snapshot, pair.here.positions);
  const auto their_ids = SortTokenIds(reference.snapshot, pair.there.positions);
  const bool found =
      ids && their_ids ? take(ids, their_ids)
                       : take(HashContent(layer), HashContent(there)) ||
                             take(as_labels(pair.here.positions), as_labels(pair.there.positions));
  if (!found) return std::nullopt;
  pair.FindSeeds();
  return pair;
}

// Chooses runs that cover the snapshot: at each token the longest one; among equally long ones the
// one that continues the previous run, then the one at the same index. Among several references a
// clearly nearer one wins.
std::vector<TokenRun> Cover(const std::vector<Pair>& pairs, uint64_t tokens) {
  std::vector<TokenRun> runs;
  for (uint64_t at = 0; at < tokens;) {
    TokenRun best;
    float best_distance = 0;
    for (const Pair& pair : pairs) {
      TokenRun of_pair;
      const auto offer = [&](const TokenRun& run) {
        if (run.tokens > of_pair.tokens) of_pair = run;
      };
      const auto take = [&] {
        if (pairs.size() == 1 || of_pair.tokens < kLeastTokens) {
          if (of_pair.tokens > best.tokens && best.tokens < kLeastTokens) best = of_pair;
          return;
        }
        const float distance = pair.MeasureDistance(of_pair);
        const bool none = best.tokens < kLeastTokens;
        const bool nearer = distance * kClearlyNearer < best_distance;
        const bool farther = best_distance * kClearlyNearer < distance;
        if (!none && !nearer && (farther || of_pair.tokens <= best.tokens)) return;
        best = of_pair;
        best_distance = distance;
      };
      if (!runs.empty() && runs.back().reference == pair.reference)
        offer(pair.From(at, at - runs.back().here + runs.back().there));
      offer(pair.From(at, at));
      if (at + kSeedTokens <= pair.here.of.size()) {
        const auto seeds = pair.seeds.find(SeedAt(pair.here.of, at));
        if (seeds != pair.seeds.end()) {
          for (const uint64_t place : seeds->second) offer(pair.From(at, place));
        }
      }
      take();
    }
    if (best.tokens >= kLeastTokens) runs.push_back(best);
    at += best.tokens >= kLeastTokens ? best.tokens : 1;
  }
  return runs;
}

}  // namespace

Rotation FindKeyRotation(const Snapshot& snapshot, const std::vector<const LayerKv*>& layers) {
  for (const size_t at : {layers.size() / 2, size_t{0}, layers.size() - 1}) {
    const KvTensor& keys = layers[at]->k;
    if (!AreHalves(keys.dtype)) return {};
    if (!HasBytes(keys)) continue;
    const std::vector<int64_t> positions = ListPositions(snapshot, *layers[at]);
    uint64_t begin = positions.size() - 1;
    while (begin > 0 && positions.size() - begin < kRotationRows &&
           positions[begin - 1] + 1 == positions[begin]) {
      --begin;
    }
    const uint64_t rows = positions.size() - begin;
    const Bytes gathered = Gather(keys, begin, rows, Order::kTokenHeadDim);
    const Halves halves(keys.dtype, gathered, nullptr);
    const ByteSpan values = halves.bytes();
    const bool bfloat = keys.dtype == DType::kBF16;
    Rotation rotation =
        FindRotation(values, bfloat, LmsScale(LmsLargestExponent(values, bfloat)), rows,
                     keys.channels(), keys.heads_known ? keys.head_dim : 0, {});
    if (!rotation.angles.empty()) return rotation;
  }
  return {};
}

namespace {

// Layers of a group, each with its number here and in each reference.
using LayerNumbers = std::vector<std::pair<uint32_t, std::vector<std::optional<uint32_t>>>>;

std::vector<std::string> ListGroups(const Snapshot& snapshot) {
  std::vector<std::string> names;
  for (const LayerKv& layer : snapshot.layers) {
    if (std::find(names.begin(), names.end(), layer.group) == names.end())
      names.push_back(layer.group);
  }
  return names;
}

// Returns the layers of a group that have as many tokens as its first one.
std::vector<const LayerKv*> ListLayers(const Snapshot& snapshot, const std::string& group,
                                       const References& references, LayerNumbers& numbers) {
  std::vector<const LayerKv*> layers;
  for (size_t i = 0; i < snapshot.layers.size(); ++i) {
    const LayerKv& layer = snapshot.layers[i];
    if (layer.group != group || layer.k.tokens() == 0) continue;
    if (!layers.empty() && layers[0]->k.tokens() != layer.k.tokens()) continue;
    layers.push_back(&layer);
    std::vector<std::optional<uint32_t>>& there = numbers.emplace_back(layer.index, 0).second;
    for (const auto& reference : references) {
      const std::vector<LayerKv>& others = reference->snapshot.layers;
      const LayerKv* other = others.size() == snapshot.layers.size()
                                 ? &others[i]
                                 : reference->snapshot.Find(layer.index);
      there.push_back(other == nullptr ? std::nullopt : std::optional(other->index));
    }
  }
  return layers;
}

// Labels the tokens of a group and of each reference that can be compared with it.
std::vector<Pair> ComparePairs(const Snapshot& snapshot, const std::vector<const LayerKv*>& layers,
                               const LayerNumbers& numbers, const References& references) {
  std::vector<Pair> pairs;
  for (size_t r = 0; r < references.size(); ++r) {
    const std::optional<uint32_t>& there = numbers[0].second[r];
    if (!there) continue;
    std::optional<Pair> pair =
        Compare(snapshot, *layers[0], *references[r], *references[r]->snapshot.Find(*there));
    if (!pair) continue;
    pair->reference = static_cast<uint16_t>(r);
    const size_t middle = layers.size() / 2;
    const std::optional<uint32_t>& their_middle = numbers[middle].second[r];
    const LayerKv* other = their_middle ? references[r]->snapshot.Find(*their_middle) : nullptr;
    if (other != nullptr && AreComparable(layers[middle]->v, other->v)) {
      pair->v_here = &*layers[middle]->v;
      pair->v_there = &*other->v;
    }
    pairs.push_back(*std::move(pair));
  }
  return pairs;
}

}  // namespace

ReferencePlan::ReferencePlan(const Snapshot& snapshot, const References& references,
                             bool rotation_wanted) {
  for (const std::string& name : ListGroups(snapshot)) {
    Group group;
    const std::vector<const LayerKv*> layers = ListLayers(snapshot, name, references, group.layers);
    if (layers.empty()) continue;
    group.runs =
        Cover(ComparePairs(snapshot, layers, group.layers, references), layers[0]->k.tokens());
    if (group.runs.empty()) continue;
    if (rotation_wanted ||
        std::any_of(group.runs.begin(), group.runs.end(),
                    [](const TokenRun& run) { return run.position_shift != 0; })) {
      group.rotation = FindKeyRotation(snapshot, layers);
    }
    groups_.push_back(std::move(group));
  }
}

}  // namespace kv
