// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/rope.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <tuple>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"
#include "lib/core/snapshot/layout.h"

namespace kv {

RopePairs ParsePairs(std::string_view text) {
  if (text == "neox") return RopePairs::kHalves;
  if (text == "gptj") return RopePairs::kNeighbours;
  throw Error(Finding::kUsage, "--rope-style '{}': expected neox or gptj", text);
}

std::string_view Name(RopePairs pairs) { return pairs == RopePairs::kHalves ? "neox" : "gptj"; }

void RequireFit(const Rope& rope, uint32_t head_dim) {
  if (!(rope.theta > 0) || !std::isfinite(rope.theta)) {
    throw Error(Finding::kUsage, "--rope-base {}: expected a positive number", rope.theta);
  }
  const uint32_t dim = rope.CountRotated(head_dim);
  if (dim > head_dim || dim % 2 != 0) {
    throw Error(
        Finding::kUsage,
        "RoPE rotates {} values of a head, which has {}: expected an even number up to that", dim,
        head_dim)
        .Hint("--rope-dims, --head-dim");
  }
  InverseFrequencies(rope, head_dim);  // throws unless the lists fit the pairs
  if (rope.scaling.by_length()) InverseFrequencies(rope, head_dim, UINT64_MAX);
}

void RequireOneSetOfFrequencies(const Rope& rope, uint64_t tokens, std::string_view what) {
  if (!rope.scaling.by_length() || static_cast<double>(tokens) <= rope.scaling.original) return;
  throw Error(Finding::kUnsupportedKind,
              "{}: with RoPE scaling {} and more than {} tokens, the frequencies of a key depend "
              "on the run's length when it was computed; this run has {}",
              what, Name(rope.scaling), rope.scaling.original, tokens)
      .Hint("--rope-freqs FILE gives the frequencies that rotated all keys");
}

std::vector<KeyShift> ShiftsToZero(std::span<const int64_t> positions, uint64_t length) {
  std::vector<KeyShift> shifts;
  shifts.reserve(positions.size());
  for (const int64_t position : positions) shifts.push_back({position, 0, length, length, false});
  return shifts;
}

RopeTable::RopeTable(const Rope& rope, uint32_t head_dim, std::span<const KeyShift> shifts)
    : style_(rope.pairs), head_dim_(head_dim), pairs_(rope.CountRotated(head_dim) / 2) {
  Add(shifts, rope);
}

RopeTable::RopeTable(const Rope& rope, uint32_t head_dim, std::span<const int64_t> positions)
    : style_(rope.pairs), head_dim_(head_dim), pairs_(rope.CountRotated(head_dim) / 2) {
  std::vector<KeyShift> shifts(positions.size());
  for (size_t i = 0; i < shifts.size(); ++i) shifts[i].to = positions[i];
  Add(shifts, rope);
}

void RopeTable::Add(std::span<const KeyShift> shifts, const Rope& rope) {
  const bool by_length = rope.scaling.by_length();
  const double factor = AttentionFactor(rope.scaling);
  std::map<uint64_t, std::vector<double>> of_length;
  const auto frequencies = [&](uint64_t length) -> const std::vector<double>& {
    if (!by_length) length = 0;
    const auto at = of_length.find(length);
    if (at != of_length.end()) return at->second;
    return of_length.emplace(length, InverseFrequencies(rope, head_dim_, length)).first->second;
  };
  std::map<std::tuple<int64_t, int64_t, uint64_t, uint64_t, bool>, uint32_t> rows;
  row_of_.reserve(shifts.size());
  for (const KeyShift& shift : shifts) {
    const bool same_run = !by_length || shift.is_first || shift.from_length == shift.to_length;
    const double scale = shift.is_first ? factor : 1;
    const int64_t from = shift.is_first ? 0 : shift.from;
    if (scale == 1 && same_run && shift.to == from) {
      row_of_.push_back(kStays);
      continue;
    }
    // Within a run only the difference of positions matters.
    const auto key = same_run
                         ? std::tuple(shift.to - from, int64_t{0}, shift.to_length, shift.to_length,
                                      shift.is_first)
                         : std::tuple(shift.to, from, shift.to_length, shift.from_length, false);
    const auto [row, is_new] = rows.emplace(key, static_cast<uint32_t>(rows.size()));
    row_of_.push_back(row->second);
    if (!is_new) continue;
    const std::vector<double>& there = frequencies(shift.to_length);
    const std::vector<double>& here = same_run ? there : frequencies(shift.from_length);
    for (uint32_t i = 0; i < pairs_; ++i) {
      const double angle =
          same_run ? static_cast<double>(shift.to - from) * there[i]
                   : static_cast<double>(shift.to) * there[i] - static_cast<double>(from) * here[i];
      cosines_.push_back(std::cos(angle) * scale);
      sines_.push_back(std::sin(angle) * scale);
    }
  }
}

void RopeTable::Rotate(size_t token, uint32_t heads, float* row) const {
  if (row_of_[token] == kStays) return;
  const size_t at = size_t{row_of_[token]} * pairs_;
  for (uint32_t h = 0; h < heads; ++h) {
    RotatePairs(row + size_t{h} * head_dim_, pairs_, style_, &cosines_[at], &sines_[at]);
  }
}

namespace {

using Kind = RopeScaling::Kind;

Error BadScaling(std::string_view text) {
  return std::move(
      Error(Finding::kUsage,
            "--rope-scaling '{}': expected none, linear:FACTOR, llama3, "
            "llama3:FACTOR,LOW,HIGH,ORIGINAL, yarn:FACTOR,ORIGINAL[,FAST,SLOW[,ATTENTION"
            "]] or dynamic:FACTOR,ORIGINAL",
            text)
          .Hint("the model's config.json has them as rope_scaling; --model config.json reads all"));
}

// Parses "8,1,4,8192" into any number of positive numbers.
std::vector<double> ParseNumbers(std::string_view list, std::string_view whole) {
  std::vector<double> numbers;
  for (const std::string_view number : Split(list, ',')) {
    const auto value = ParseNumber<double>(number);
    if (!value || !(*value > 0) || *value > 1e12) throw BadScaling(whole);
    numbers.push_back(*value);
  }
  return numbers;
}

bool Fill(std::string_view kind, const std::vector<double>& numbers, RopeScaling& scaling) {
  const size_t count = numbers.size();
  if (count > 0) scaling.factor = numbers[0];
  if (kind == "none") return count == 0;
  if (kind == "linear") {
    scaling.kind = Kind::kLinear;
    return count == 1;
  }
  if (kind == "llama3") {
    scaling.kind = Kind::kLlama3;
    if (count == 4) {
      scaling.low = numbers[1];
      scaling.high = numbers[2];
      scaling.original = numbers[3];
    }
    return (count == 0 || count == 4) && scaling.high > scaling.low;
  }
  if (count > 1) scaling.original = numbers[1];
  if (kind == "dynamic") {
    scaling.kind = Kind::kDynamic;
    return count == 2;
  }
  if (kind != "yarn") return false;
  scaling.kind = Kind::kYarn;
  if (count > 3) {
    scaling.beta_fast = numbers[2];
    scaling.beta_slow = numbers[3];
  }
  if (count > 4) scaling.attention = numbers[4];
  return count == 2 || count == 4 || count == 5;
}

// Long wavelengths are stretched by the factor, short ones are kept, and those between are
// interpolated.
double Llama3Frequency(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < scaling.original / scaling.high) return frequency;
  if (wavelength > scaling.original / scaling.low) return frequency / scaling.factor;
  const double t = (scaling.original / wavelength - scaling.low) / (scaling.high - scaling.low);
  return (1 - t) * frequency / scaling.factor + t * frequency;
}

// Returns the (fractional) index of the pair that rotates by this number of full circles over the
// original length.
double PairOfRotations(double rotations, const Rope& rope, uint32_t dim) {
  return dim * std::log(rope.scaling.original / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

// Pairs that rotate fast keep their frequency and slow ones are stretched, with a ramp in between.
void Yarn(const Rope& rope, uint32_t dim, std::vector<double>& frequencies) {
  double low = PairOfRotations(rope.scaling.beta_fast, rope, dim);
  double high = PairOfRotations(rope.scaling.beta_slow, rope, dim);
  if (rope.scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / rope.scaling.factor * ramp + frequencies[i] * (1 - ramp);
  }
}

// The base grows with the length of the run beyond the original length.
double DynamicBase(const Rope& rope, uint32_t dim, uint64_t length) {
  const RopeScaling& scaling = rope.scaling;
  const double tokens = static_cast<double>(length);
  if (tokens <= scaling.original || dim <= 2) return rope.theta;
  const double stretch = scaling.factor * tokens / scaling.original - (scaling.factor - 1);
  return rope.theta * std::pow(stretch, dim / (dim - 2.0));
}

// Throws unless `list` has one entry per pair.
void RequirePairs(std::string_view what, const std::vector<double>& list, uint32_t dim) {
  if (list.size() == dim / 2) return;
  throw Error(Finding::kInconsistent, "{} has {} numbers, but RoPE rotates {} pairs of a head",
              what, list.size(), dim / 2)
      .Hint("--rope-dims, --head-dim");
}

}  // namespace

RopeScaling ParseScaling(std::string_view text) {
  RopeScaling scaling;
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view kind = text.substr(0, colon);
  if (kind == "mrope") {
    throw Error(Finding::kUnsupportedKind,
                "--rope-scaling mrope: tokens of these models have three positions, and "
                "no flag says where images lie")
        .Hint(
            "for a prompt of text alone all three are equal: give --rope-scaling "
            "none (or what config.json says beside mrope_section)");
  }
  if (kind == "longrope" || kind == "su" || kind == "proportional") {
    throw Error(Finding::kUsage, "--rope-scaling '{}': this scaling needs a number for each pair",
                text)
        .Hint("--model config.json supplies them; --rope-freqs FILE supplies frequencies");
  }
  std::vector<double> numbers;
  if (colon < text.size()) numbers = ParseNumbers(text.substr(colon + 1), text);
  if (!Fill(kind, numbers, scaling)) throw BadScaling(text);
  return scaling;
}

std::string Name(const RopeScaling& scaling) {
  const auto attention = [&] {
    return scaling.attention == 0 ? std::string() : fmt::format(",{}", scaling.attention);
  };
  switch (scaling.kind) {
    case Kind::kNone:
      return "none";
    case Kind::kLinear:
      return fmt::format("linear:{}", scaling.factor);
    case Kind::kLlama3:
      return fmt::format("llama3:{},{},{},{}", scaling.factor, scaling.low, scaling.high,
                         scaling.original);
    case Kind::kYarn:
      return fmt::format("yarn:{},{},{},{}{}", scaling.factor, scaling.original, scaling.beta_fast,
                         scaling.beta_slow, attention());
    case Kind::kDynamic:
      return fmt::format("dynamic:{},{}", scaling.factor, scaling.original);
    case Kind::kLongRope:
      return fmt::format("longrope:{},{}{}", scaling.factor, scaling.original, attention());
    case Kind::kGiven:
      return std::all_of(scaling.frequencies.begin(), scaling.frequencies.end(),
                         [](double frequency) { return frequency == 0; })
                 ? "no rotation"
                 : "given frequencies";
  }
  return "?";
}

Rope WithoutRotation(uint32_t head_dim) {
  Rope rope;
  rope.scaling.kind = Kind::kGiven;
  rope.scaling.frequencies.assign(head_dim / 2, 0.0);
  rope.rotary_dim = head_dim / 2 * 2;
  return rope;
}

double AttentionFactor(const RopeScaling& scaling) {
  if (scaling.attention > 0) return scaling.attention;
  if (scaling.factor <= 1) return 1;
  if (scaling.kind == Kind::kYarn) return 0.1 * std::log(scaling.factor) + 1;
  if (scaling.kind == Kind::kLongRope)
    return std::sqrt(1 + std::log(scaling.factor) / std::log(scaling.original));
  return 1;
}

std::vector<double> InverseFrequencies(const Rope& rope, uint32_t head_dim, uint64_t length) {
  const uint32_t dim = rope.CountRotated(head_dim);
  const RopeScaling& scaling = rope.scaling;
  if (scaling.kind == Kind::kGiven) {
    RequirePairs("the list of frequencies", scaling.frequencies, dim);
    return scaling.frequencies;
  }
  const double base = scaling.kind == Kind::kDynamic ? DynamicBase(rope, dim, length) : rope.theta;
  const bool is_long = static_cast<double>(length) > scaling.original;
  const std::vector<double>& divisors = is_long ? scaling.long_factors : scaling.short_factors;
  if (scaling.kind == Kind::kLongRope) RequirePairs("a list of LongRoPE", divisors, dim);
  std::vector<double> frequencies(dim / 2);
  for (uint32_t i = 0; i < dim / 2; ++i) {
    // Models compute 1 / theta^(2i / dim) in float. A more precise value would rotate keys by other
    // angles than the model did (5e-5 of a value at position 8191).
    const double exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    double frequency = 1.0f / static_cast<float>(std::pow(base, exponent));
    if (scaling.kind == Kind::kLinear) frequency /= scaling.factor;
    if (scaling.kind == Kind::kLlama3) frequency = Llama3Frequency(frequency, scaling);
    if (scaling.kind == Kind::kLongRope) frequency /= divisors[i];
    frequencies[i] = frequency;
  }
  if (scaling.kind == Kind::kYarn) Yarn(rope, dim, frequencies);
  return frequencies;
}

namespace {

bool HasPlainDims(const KvTensor& tensor) {
  return std::all_of(tensor.pieces.begin(), tensor.pieces.end(),
                     [](const StridedPiece& piece) { return piece.dim.group == UINT64_MAX; });
}

// Returns a copy in [token, head, dim], of which every order of dims is a view.
KvTensor CopyAsRows(const KvTensor& tensor, Snapshot& snapshot) {
  snapshot.spools.push_back(FileSource::FromBytes(
      Gather(tensor, 0, tensor.tokens(), Order::kTokenHeadDim), "reordered keys"));
  return ContiguousTensor(snapshot.spools.back()->bytes().data(), tensor.dtype, tensor.tokens(),
                          tensor.heads, tensor.head_dim, Order::kTokenHeadDim);
}

void Reorder(KeyPairs to, KvTensor& tensor, Snapshot& snapshot) {
  if (IsBlockQuantised(tensor.dtype)) {
    throw Error(Finding::kUnsupportedDtype, "the RoPE pairs of {} blocks cannot be reordered",
                Name(tensor.dtype))
        .Hint("--dtype f16, bf16 or f32 converts them first");
  }
  if (tensor.head_dim % 2 != 0)
    throw Error(Finding::kInconsistent, "heads of {} values", tensor.head_dim);
  if (!HasPlainDims(tensor)) tensor = CopyAsRows(tensor, snapshot);
  const uint64_t half = tensor.head_dim / 2;
  for (StridedPiece& piece : tensor.pieces) {
    const uint64_t step = piece.dim.step;
    // Neighbours 2i, 2i + 1 come from i and i + half, and vice versa.
    piece.dim = to == KeyPairs::kNeighbours
                    ? AxisStride{.step = half * step, .group = 2, .group_step = step}
                    : AxisStride{.step = 2 * step, .group = half, .group_step = step};
  }
}

}  // namespace

std::string_view Name(KeyPairs pairs) {
  constexpr std::string_view kNames[] = {"unknown", "none", "neighbours", "halves"};
  return kNames[static_cast<size_t>(pairs)];
}

std::optional<KeyPairs> ParseRopePairs(std::string_view word) {
  for (const std::string_view known :
       {"neighbours", "neighbors", "interleaved", "adjacent", "gptj", "norm", "llama"}) {
    if (word == known) return KeyPairs::kNeighbours;
  }
  for (const std::string_view known : {"halves", "half", "split", "neox", "hf"}) {
    if (word == known) return KeyPairs::kHalves;
  }
  return std::nullopt;
}

PairsOwner FindPairsOwner(const Snapshot& snapshot) {
  const auto recorded = snapshot.storage.find(kRopePairs);
  const bool is_recorded = recorded != snapshot.storage.end();
  const std::string& owner = is_recorded ? recorded->second : snapshot.engine;
  if (!is_recorded || owner == kPairsOfLlama) return FindTraits(owner).pairs;
  return owner == kPairsOfTransformers ? PairsOwner::kTransformers : PairsOwner::kUnknown;
}

const EngineTraits& FindTraits(std::string_view engine) {
  // InfiniLM reorders weights and MNN keeps its exporter's order, so both orders are unknown.
  static constexpr EngineTraits kEngines[] = {
      {.engine = kPairsOfLlama, .pairs = PairsOwner::kLlama, .may_rotate_blocks = true},
      {.engine = "MNN", .pairs = PairsOwner::kUnknown, .runs_exports = true},
      {.engine = "InfiniLM", .pairs = PairsOwner::kUnknown},
      {.engine = ""}};
  const auto* const last = std::end(kEngines) - 1;
  return *std::find_if(std::begin(kEngines), last,
                       [&](const EngineTraits& row) { return row.engine == engine; });
}

std::string PairsToRecord(const Snapshot& snapshot) {
  const auto recorded = snapshot.storage.find(kRopePairs);
  if (recorded != snapshot.storage.end()) return recorded->second;
  switch (FindPairsOwner(snapshot)) {
    case PairsOwner::kLlama:
      return std::string(kPairsOfLlama);
    case PairsOwner::kTransformers:
      return std::string(kPairsOfTransformers);
    case PairsOwner::kUnknown:
      break;
  }
  return {};
}

void TakeRecordedPairs(const std::string& word, Snapshot& snapshot) {
  if (word.empty()) return;
  const bool is_known =
      word == kPairsOfLlama || word == kPairsOfTransformers || ParseRopePairs(word).has_value();
  if (!is_known) {
    throw Error(Finding::kBadField,
                "rope_pairs '{}' is neither an order nor an engine that has one",
                Escaped(word, 40));
  }
  snapshot.storage[kRopePairs] = word;
  snapshot.facts.emplace_back("RoPE pairs",
                              ParseRopePairs(word) ? word : fmt::format("as {} has them", word));
}

void ReorderKeys(KeyPairs from, KeyPairs to, Snapshot& snapshot) {
  if (from == to) return;
  RequireHeads(snapshot, "reordering the RoPE pairs of K");
  for (LayerKv& layer : snapshot.layers) {
    try {
      if (layer.has_k()) Reorder(to, layer.k, snapshot);
    } catch (Error& error) {
      throw error.In("layer {} K", layer.index);
    }
  }
}

}  // namespace kv
