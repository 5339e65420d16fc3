// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Advice on saved states: finds states that begin alike, extrapolates the sizes of the levels from
// samples, and decides between a store, archives and nothing.
#include "lib/study/advise/states.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "lib/core/base/hash.h"
#include "lib/core/codec/codec.h"
#include "lib/core/snapshot/layout.h"

namespace kv::advise {
namespace {

// A store cuts rows at multiples of this many tokens, and keeps a shorter last piece only of a
// state that another one continues (lib/store/state.h).
constexpr uint64_t kStoreBlock = 256, kStoreEnd = 64;
constexpr uint64_t kGatheredTokens = 4096;  // rows hashed at once
constexpr uint64_t kChunkBytes = 256 << 10;
// Thresholds below which a change is not worth the work: the share of rows that a store saves, and
// the share of bytes that archives leave.
constexpr double kWorthSharing = 0.02, kWorthDoing = 0.97;
// Contestants run for this many seconds and the fastest run counts; slower ones run once.
constexpr double kSampleSeconds = 0.1;
constexpr int kSampleRounds = 3;

std::string GeometryText(const Snapshot& snapshot) {
  const LayerKv& layer = snapshot.layers.front();
  if (!layer.has_k() && !layer.v) return fmt::format("{} x empty", snapshot.layers.size());
  const KvTensor& tensor = layer.has_k() ? layer.k : *layer.v;
  std::string text =
      fmt::format("{} x {} {}", snapshot.layers.size(), tensor.channels(), Name(tensor.dtype));
  if (layer.v && layer.v->dtype != tensor.dtype) text += fmt::format("/{}", Name(layer.v->dtype));
  return text;
}

bool HasRows(const KvTensor& tensor) {
  return tensor.tokens() > 0 && tensor.row_bytes() > 0 &&
         std::all_of(tensor.pieces.begin(), tensor.pieces.end(),
                     [](const StridedPiece& piece) { return piece.data != nullptr; });
}

const KvTensor* LateTensor(const Snapshot& snapshot) {
  for (auto layer = snapshot.layers.rbegin(); layer != snapshot.layers.rend(); ++layer) {
    if (layer->v && HasRows(*layer->v)) return &*layer->v;
    if (layer->has_k() && HasRows(layer->k)) return &layer->k;
  }
  return nullptr;
}

uint64_t Chained(uint64_t before, uint64_t next) {
  const uint64_t pair[2] = {before, next};
  return Hash64(std::as_bytes(std::span(pair)));
}

std::vector<uint64_t> HashRows(const Snapshot& snapshot, const KvTensor& tensor, uint64_t most) {
  const uint64_t tokens = std::min(tensor.tokens(), most);
  const uint64_t row = tensor.units_per_head() * tensor.unit_bytes();
  std::vector<uint64_t> hashes;
  hashes.reserve(tokens);
  Bytes rows;
  uint64_t last = 0;
  for (uint64_t begin = 0; begin < tokens; begin += kGatheredTokens) {
    const uint64_t count = std::min(kGatheredTokens, tokens - begin);
    rows.resize(count * row);
    Gather(tensor, begin, count, 0, 1, Order::kTokenHeadDim, rows);
    for (uint64_t i = 0; i < count; ++i) {
      last = Chained(last, Hash64(ByteSpan(rows).subspan(i * row, row)));
      hashes.push_back(last);
    }
    DropTokens(snapshot, tensor, begin, count);
  }
  DropTensor(snapshot, tensor);
  return hashes;
}

// Each hash covers all rows before it, so halving finds the first difference.
uint64_t CommonLength(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  const size_t most = std::min(a.size(), b.size());
  size_t low = 0, high = most;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (a[middle] == b[middle]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

using Hashes = std::vector<uint64_t> SavedState::*;

// Returns the states sorted by geometry, then by the first of their hashes. Among equal states the
// last written comes last.
std::vector<size_t> SortedBy(const std::vector<SavedState>& states, Hashes hashes) {
  std::vector<size_t> order;
  for (size_t i = 0; i < states.size(); ++i) {
    if (!(states[i].*hashes).empty()) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) {
    const SavedState &a = states[i], &b = states[j];
    if (a.geometry != b.geometry) return a.geometry < b.geometry;
    const std::vector<uint64_t>&left = a.*hashes, &right = b.*hashes;
    const uint64_t common = CommonLength(left, right);
    if (common < std::min(left.size(), right.size())) return left[common] < right[common];
    if (left.size() != right.size()) return left.size() < right.size();
    return a.written_s < b.written_s;
  });
  return order;
}

uint64_t CountCommon(const SavedState& a, const SavedState& b, Hashes hashes) {
  return a.geometry == b.geometry ? CommonLength(a.*hashes, b.*hashes) : 0;
}

// Two files of different size or format are not the same, even if they have the same rows.
Kinship ClassifyKinship(const SavedState& state, const SavedState& kin, uint64_t common) {
  if (common == 0) return Kinship::kAlone;
  if (common < state.tokens) return common == kin.tokens ? Kinship::kGrows : Kinship::kBranches;
  const bool same = common == kin.tokens && state.bytes == kin.bytes && state.format == kin.format;
  return same ? Kinship::kSame : Kinship::kContained;
}

bool BeginsWith(const KvTensor& whole, const KvTensor& part) {
  if (part.tokens() == 0) return true;
  if (!HasRows(whole) || !HasRows(part) || whole.tokens() < part.tokens()) return false;
  for (uint64_t begin = 0; begin < part.tokens(); begin += kGatheredTokens) {
    const uint64_t count = std::min(kGatheredTokens, part.tokens() - begin);
    if (Gather(whole, begin, count, Order::kTokenHeadDim) !=
        Gather(part, begin, count, Order::kTokenHeadDim)) {
      return false;
    }
  }
  return true;
}

// Returns for each state of `order` the place of the first later state that contains it, or the
// number of states.
std::vector<size_t> FindHolders(const std::vector<SavedState>& states,
                                const std::vector<size_t>& order, const HoldsState& holds) {
  constexpr size_t kMostTried = 8;  // later states, at most, that each one is compared with
  std::vector<size_t> holders(order.size(), order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const SavedState& part = states[order[i]];
    const size_t end = std::min(order.size(), i + 1 + kMostTried);
    for (size_t j = i + 1; j < end && holders[i] == order.size(); ++j) {
      const SavedState& whole = states[order[j]];
      if (CountCommon(part, whole, &SavedState::rows) < part.tokens) break;
      if (holds(whole, part)) holders[i] = j;
    }
  }
  return holders;
}

// Hashes of one head only suggest that a state contains another; comparing all bytes corrects the
// states that do not.
void ProveKinships(std::vector<SavedState>& states, const std::vector<size_t>& order,
                   const HoldsState& holds) {
  const std::vector<size_t> holders = FindHolders(states, order, holds);
  for (size_t i = 0; i < order.size(); ++i) {
    SavedState& state = states[order[i]];
    size_t kin = holders[i];
    state.contained = kin < order.size();
    if (state.kinship == Kinship::kAlone || state.kinship == Kinship::kBranches) continue;
    if (!state.contained) {
      const auto held = std::find(holders.rend() - static_cast<ptrdiff_t>(i), holders.rend(), i);
      if (held == holders.rend()) {
        state.kinship = Kinship::kAlike;
        continue;
      }
      kin = static_cast<size_t>(holders.rend() - held) - 1;
    }
    const SavedState& other = states[order[kin]];
    state.kin = other.name;
    state.shared_tokens = std::min(state.tokens, other.tokens);
    state.kinship = ClassifyKinship(state, other, state.shared_tokens);
  }
}

}  // namespace

uint64_t MostComparedTokens(uint64_t states) {
  constexpr uint64_t kMostHashes = uint64_t{64} << 20;  // 16 bytes per token: 1 GiB
  return std::min(kMostComparedTokens, kMostHashes / std::max<uint64_t>(states, 1));
}

SavedState DescribeState(const Snapshot& snapshot, uint64_t most_compared) {
  SavedState state;
  state.format = snapshot.format;
  state.model = snapshot.model;
  if (snapshot.layers.empty()) return state;
  state.geometry = GeometryText(snapshot);
  state.kv_bytes = snapshot.kv_bytes();
  const KvTensor* tensor = LateTensor(snapshot);
  if (tensor == nullptr) return state;
  state.tokens = tensor->tokens();
  state.rows = HashRows(snapshot, *tensor, most_compared);
  uint64_t last = 0;
  const size_t ids = std::min<size_t>(snapshot.tokens.size(), most_compared);
  for (size_t i = 0; i < ids; ++i) {
    last = Chained(last, static_cast<uint32_t>(snapshot.tokens[i]));
    state.ids.push_back(last);
  }
  return state;
}

bool HoldsRows(const Snapshot& whole, const Snapshot& part) {
  if (whole.layers.size() != part.layers.size()) return false;
  const size_t ids = std::min(whole.tokens.size(), part.tokens.size());
  if (!std::equal(part.tokens.begin(), part.tokens.begin() + static_cast<ptrdiff_t>(ids),
                  whole.tokens.begin())) {
    return false;
  }
  for (size_t i = 0; i < part.layers.size(); ++i) {
    const LayerKv &a = whole.layers[i], &b = part.layers[i];
    if (a.has_k() != b.has_k() || a.v.has_value() != b.v.has_value()) return false;
    if ((b.has_k() && !BeginsWith(a.k, b.k)) || (b.v && !BeginsWith(*a.v, *b.v))) return false;
  }
  return true;
}

void CompareStates(std::vector<SavedState>& states, const HoldsState& holds) {
  const std::vector<size_t> order = SortedBy(states, &SavedState::rows);
  for (size_t i = 0; i < order.size(); ++i) {
    SavedState& state = states[order[i]];
    const auto meet = [&](size_t other) {
      const SavedState& kin = states[order[other]];
      const uint64_t common = CountCommon(state, kin, &SavedState::rows);
      if (common > state.shared_tokens) {
        state.shared_tokens = common;
        state.kin = kin.name;
        state.kinship = ClassifyKinship(state, kin, common);
      }
      return common;
    };
    if (i + 1 < order.size()) meet(i + 1);
    if (i == 0) continue;
    const uint64_t before = meet(i - 1), end = before % kStoreBlock;
    const bool goes_on = before == states[order[i - 1]].tokens && end >= kStoreEnd;
    state.stored_tokens = goes_on || before == state.tokens ? before : before - end;
  }
  ProveKinships(states, order, holds);
  const std::vector<size_t> by_id = SortedBy(states, &SavedState::ids);
  for (size_t i = 1; i < by_id.size(); ++i) {
    SavedState &a = states[by_id[i - 1]], &b = states[by_id[i]];
    const uint64_t common = CountCommon(a, b, &SavedState::ids);
    a.same_ids = std::max(a.same_ids, common);
    b.same_ids = std::max(b.same_ids, common);
  }
}

std::vector<ContestChunk> SampleState(const Snapshot& snapshot) {
  std::vector<const LayerKv*> layers;
  for (const LayerKv& layer : snapshot.layers) {
    if ((layer.has_k() && HasRows(layer.k)) || (layer.v && HasRows(*layer.v)))
      layers.push_back(&layer);
  }
  std::vector<ContestChunk> chunks;
  if (layers.empty()) return chunks;
  const RowOrders orders(snapshot);
  std::vector<size_t> places = {0, layers.size() / 2, layers.size() - 1};
  places.erase(std::unique(places.begin(), places.end()), places.end());
  for (const size_t place : places) {
    const LayerKv& layer = *layers[place];
    for (const bool is_value : {false, true}) {
      if (is_value ? !layer.v : !layer.has_k()) continue;
      const KvTensor& tensor = is_value ? *layer.v : layer.k;
      if (!HasRows(tensor) || tensor.row_bytes() > kChunkBytes) continue;
      const uint64_t count =
          std::min({tensor.tokens(), kStoreBlock, kChunkBytes / tensor.row_bytes()});
      const uint64_t begin = (tensor.tokens() - count) / 2;
      chunks.push_back(MakeContestChunk(tensor, layer.index, is_value, begin, count, orders));
    }
  }
  return chunks;
}

uint64_t StatesAdvice::bytes() const {
  return std::accumulate(states.begin(), states.end(), uint64_t{0},
                         [](uint64_t sum, const SavedState& of) { return sum + of.bytes; });
}

namespace {

template <typename Is, typename Count>
uint64_t Sum(const std::vector<SavedState>& states, const Is& is, const Count& count) {
  uint64_t sum = 0;
  for (const SavedState& state : states) sum += is(state) ? count(state) : 0;
  return sum;
}
uint64_t One(const SavedState&) { return 1; }
uint64_t AllBytes(const SavedState& of) { return of.bytes; }
bool Any(const SavedState&) { return true; }
bool IsArchive(const SavedState& of) { return of.is_archive; }
bool IsContained(const SavedState& of) { return of.contained; }
bool IsAlike(const SavedState& of) { return of.kinship == Kinship::kAlike; }
bool IsNear(const SavedState& of) {
  return of.kinship == Kinship::kBranches && of.shared_tokens * 10 >= of.tokens * 9;
}
bool IsIdle(const SavedState& of) { return of.idle; }
// Returns true if the states have token ids in common whose rows differ, because they were computed
// differently.
bool IsRecomputed(const SavedState& of) { return of.same_ids >= of.shared_tokens + kStoreBlock; }

}  // namespace

uint64_t StatesAdvice::shared_bytes() const {
  return Sum(states, Any, [](const SavedState& of) { return of.TokenBytes(of.stored_tokens); });
}
uint64_t StatesAdvice::archive_bytes() const { return Sum(states, IsArchive, AllBytes); }
uint64_t StatesAdvice::contained_states() const { return Sum(states, IsContained, One); }
uint64_t StatesAdvice::contained_bytes() const { return Sum(states, IsContained, AllBytes); }
uint64_t StatesAdvice::alike_states() const { return Sum(states, IsAlike, One); }
uint64_t StatesAdvice::near_states() const { return Sum(states, IsNear, One); }
uint64_t StatesAdvice::recomputed_states() const { return Sum(states, IsRecomputed, One); }
uint64_t StatesAdvice::idle_states() const { return Sum(states, IsIdle, One); }
uint64_t StatesAdvice::idle_bytes() const { return Sum(states, IsIdle, AllBytes); }

namespace {

// Bytes of K and V of one or several geometries, and those of them that a store shares.
struct RowsBytes {
  double all = 0, shared = 0;
};

std::map<std::string, RowsBytes> RowsByGeometry(const std::vector<SavedState>& states) {
  std::map<std::string, RowsBytes> rows;
  for (const SavedState& state : states) {
    if (state.is_archive) continue;
    RowsBytes& of = rows[state.geometry];
    of.all += static_cast<double>(state.kv_bytes);
    of.shared += static_cast<double>(state.TokenBytes(state.stored_tokens));
  }
  return rows;
}

// Sums of one level over the sampled geometries.
struct LevelSums {
  std::string level;
  RowsBytes rows;               // rows of the states
  double alone = 0, store = 0;  // what the level leaves of them, in archives and in a store
  double encode_seconds = 0, decode_seconds = 0;

  void Add(const ContestResult& result, const RowsBytes& of) {
    const auto raw = static_cast<double>(result.raw_bytes());
    const double left = static_cast<double>(result.stored_bytes()) / raw;
    level = result.name;
    rows.all += of.all;
    rows.shared += of.shared;
    alone += of.all * left;
    store += (of.all - of.shared) * left;
    encode_seconds += of.all / raw * result.both.encode_seconds.front();
    decode_seconds += of.all / raw * result.both.decode_seconds.front();
  }
};

StatesLevel ToLevel(const LevelSums& sums, const RowsBytes& all, uint64_t rest, bool has_times) {
  const auto rate = [&](double seconds) { return sums.rows.all / 1e6 / std::max(seconds, 1e-9); };
  const double mean = sums.alone / sums.rows.all;
  const double others = all.all - sums.rows.all, shared = all.shared - sums.rows.shared;
  StatesLevel level;
  level.level = sums.level;
  level.ratio = sums.rows.all / std::max(sums.alone, 1.0);
  level.alone_bytes = rest + static_cast<uint64_t>(sums.alone + others * mean);
  level.store_bytes = rest + static_cast<uint64_t>(sums.store + (others - shared) * mean);
  if (has_times) {
    level.encode_mb_per_s = rate(sums.encode_seconds);
    level.decode_mb_per_s = rate(sums.decode_seconds);
  }
  return level;
}

}  // namespace

void MeasureLevels(const std::vector<GeometrySample>& samples, bool has_times, Progress* progress,
                   StatesAdvice& advice) {
  std::vector<Contestant> contestants = LevelContestants();
  contestants.erase(contestants.begin());  // level compat exists only for very old readers
  const std::map<std::string, RowsBytes> geometries = RowsByGeometry(advice.states);
  RowsBytes all;
  for (const auto& [geometry, rows] : geometries) {
    all.all += rows.all;
    all.shared += rows.shared;
  }
  std::vector<LevelSums> sums(contestants.size());
  for (const GeometrySample& sample : samples) {
    if (sample.chunks.empty()) continue;
    const std::vector<ContestResult> results =
        RunContest(sample.chunks, contestants, kSampleRounds, kSampleSeconds, progress);
    for (size_t i = 0; i < results.size(); ++i)
      sums[i].Add(results[i], geometries.at(sample.geometry));
    ++advice.sampled_states;
    advice.sampled_chunks += sample.chunks.size();
    advice.sampled_bytes += results.front().raw_bytes();
  }
  if (advice.sampled_chunks == 0) return;
  // Archives and bytes outside K and V do not change.
  const uint64_t rest = advice.bytes() - std::min(advice.bytes(), static_cast<uint64_t>(all.all));
  for (const LevelSums& of : sums) advice.levels.push_back(ToLevel(of, all, rest, has_times));
}

void Decide(StatesAdvice& advice) {
  using Kind = StatesAdvice::Kind;
  const auto all = static_cast<double>(advice.bytes());
  advice.kind = Kind::kKeep;
  advice.result_bytes = advice.bytes();
  for (const StatesLevel& level : advice.levels) {
    if (level.level != Name(Effort::kDefault)) continue;
    const bool shares = static_cast<double>(advice.shared_bytes()) > kWorthSharing * all;
    const uint64_t bytes = shares ? level.store_bytes : level.alone_bytes;
    if (static_cast<double>(bytes) > kWorthDoing * all) continue;
    advice.kind = shares ? Kind::kStore : Kind::kCompress;
    advice.result_bytes = bytes;
  }
}

}  // namespace kv::advise
