// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Bounds by static tables, and by an adaptive mixture that codes each bit with mixed predictions.
#include "lib/study/bench/bound.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "lib/core/codec/cdf/cdf.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/codec/context/earlier_rows.h"
#include "lib/core/codec/context/lms.h"

namespace kv {
namespace {

constexpr int kPlaceBits = 16;
constexpr size_t kWidths = 3, kCounters = 3, kInputs = kWidths + kCounters;

// Counts of symbols by context, from which a static table would be made.
class StaticTables {
 public:
  explicit StaticTables(int symbol_bits) : symbol_bits_(symbol_bits) {}

  void Count(uint32_t context, uint32_t symbol) { ++counts_[context][symbol]; }
  // Returns the entropy plus the cost of the table: which symbols occur, and the frequency of each.
  double Bits() const {
    double bits = 0;
    for (const auto& [context, symbols] : counts_) {
      double total = 0;
      for (const auto& [symbol, count] : symbols) total += static_cast<double>(count);
      for (const auto& [symbol, count] : symbols)
        bits += static_cast<double>(count) * std::log2(total / static_cast<double>(count));
      const auto occur = static_cast<double>(symbols.size());
      bits += occur * std::log2(total + 1) / 2;
      bits += std::min(std::exp2(symbol_bits_), occur * symbol_bits_);
    }
    return bits;
  }

 private:
  const int symbol_bits_;
  std::map<uint32_t, std::map<uint32_t, uint64_t>> counts_;
};

double Stretch(double p) { return std::log(p / (1 - p)); }
double Squash(double x) { return 1 / (1 + std::exp(-x)); }

// Probability of a bit, learned from earlier bits in the same context.
struct BitCounter {
  float p = 0.5f, seen = 0;

  void Learn(bool bit) {
    // A counter averages over about this many recent bits.
    constexpr float kMostSeen = 400;
    seen = std::min(seen + 1, kMostSeen);
    p += ((bit ? 1.0f : 0.0f) - p) / (seen + 0.6f);
    p = std::clamp(p, 1e-4f, 1 - 1e-4f);
  }
};

// Mixes the predictions of its inputs for a bit, with weights that it learns for each bit of a
// context.
class Mixture {
 public:
  explicit Mixture(uint64_t columns, int symbol_bits)
      : symbol_bits_(symbol_bits),
        all_(size_t{1} << symbol_bits),
        above_(size_t{1} << (2 * symbol_bits - 1)),
        channel_(columns << symbol_bits) {
    for (auto& weights : weights_) weights = {0.15, 0.7, 0.15, 0, 0, 0};
  }

  // Returns the bits that coding the value with ordinal `place` costs.
  double Code(const LogisticCode& code, const ChannelModel::Expected& expected, uint32_t place,
              uint32_t place_above, uint64_t column) {
    constexpr std::array<float, kWidths> kScales = {0.6f, 1.0f, 1.6f};
    std::array<double, kWidths> low{}, high{};
    high.fill(kSlotTotal);
    double bits = 0;
    uint32_t first = 0, end = 1u << kPlaceBits, node = 1;
    for (int at = 0; at < kPlaceBits; ++at) {
      const uint32_t middle = (first + end) / 2;
      const bool bit = place >= middle;
      std::array<double, kInputs> inputs{};
      std::array<double, kWidths> border{};
      for (size_t i = 0; i < kWidths; ++i) {
        border[i] = code.FindSlot(middle, expected.mean, expected.inverse_scale * kScales[i]).start;
        inputs[i] = Stretch((high[i] - border[i]) / (high[i] - low[i]));
      }
      const std::array<BitCounter*, kCounters> counters = CountersAt(at, node, place_above, column);
      for (size_t i = 0; i < kCounters; ++i) {
        if (counters[i] != nullptr)
          inputs[kWidths + i] = Stretch(static_cast<double>(counters[i]->p));
      }
      bits += Mix(static_cast<size_t>(at), inputs, bit);
      for (BitCounter* counter : counters) {
        if (counter != nullptr) counter->Learn(bit);
      }
      (bit ? first : end) = middle;
      for (size_t i = 0; i < kWidths; ++i) (bit ? low : high)[i] = border[i];
      node = 2 * node + (bit ? 1 : 0);
    }
    return bits;
  }

 private:
  // Returns the counters of the upper bits; lower bits look like noise to counters.
  std::array<BitCounter*, kCounters> CountersAt(int at, uint32_t node, uint32_t place_above,
                                                uint64_t column) {
    if (at >= symbol_bits_) return {};
    const uint32_t above = place_above >> (kPlaceBits - symbol_bits_ + 1);
    return {&all_[node], &above_[(size_t{above} << symbol_bits_) + node],
            &channel_[(column << symbol_bits_) + node]};
  }

  double Mix(size_t at, const std::array<double, kInputs>& inputs, bool bit) {
    constexpr double kRate = 0.0015;  // step size of the gradient descent over weights
    std::array<double, kInputs>& weights = weights_[at];
    double sum = 0;
    for (size_t i = 0; i < kInputs; ++i) sum += weights[i] * inputs[i];
    const double p = std::clamp(Squash(sum), 1e-7, 1 - 1e-7);
    const double error = (bit ? 1 : 0) - p;
    for (size_t i = 0; i < kInputs; ++i) weights[i] += kRate * error * inputs[i];
    return -std::log2(bit ? p : 1 - p);
  }

  const int symbol_bits_;
  std::vector<BitCounter> all_, above_, channel_;
  std::array<std::array<double, kInputs>, kPlaceBits> weights_{};
};

// Returns the rows that occur for the first time; every repeated row costs the number of an earlier
// one.
Bytes CollectNewRows(ByteSpan raw, uint64_t rows, double& bits) {
  const size_t row_bytes = raw.size() / rows;
  std::set<std::string_view> seen;
  Bytes kept;
  for (uint64_t row = 0; row < rows; ++row) {
    const ByteSpan one = raw.subspan(row * row_bytes, row_bytes);
    const bool is_new = seen.insert({reinterpret_cast<const char*>(one.data()), row_bytes}).second;
    if (is_new) kept.insert(kept.end(), one.begin(), one.end());
    bits += is_new ? 0 : std::log2(static_cast<double>(seen.size()));
  }
  // Cost of saying which rows are new.
  const double share = static_cast<double>(seen.size()) / static_cast<double>(rows);
  if (share < 1) {
    bits -=
        static_cast<double>(rows) * (share * std::log2(share) + (1 - share) * std::log2(1 - share));
  }
  return kept;
}

double MixedBits(ChunkShape shape, ByteSpan all, ChunkGrid grid, int symbol_bits) {
  double bits = 0;
  const Bytes raw = CollectNewRows(all, grid.rows, bits);
  shape.tokens = shape.tokens * raw.size() / all.size();
  grid.rows = raw.size() / 2 / grid.columns;
  if (!FitsCdf(grid.rows, grid.columns)) return bits + 8 * static_cast<double>(raw.size());
  const bool bfloat = shape.dtype == DType::kBF16;
  const float scale = LmsScale(LmsLargestExponent(raw, bfloat));
  const ModelValue value_of(bfloat, scale);
  std::vector<uint16_t> halves(raw.size() / 2);
  std::vector<float> x(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    halves[i] = LoadLE<uint16_t>(raw.data() + 2 * i);
    x[i] = value_of(halves[i]);
  }
  ChannelShape channels = ShapeFor(
      x.data(), grid.rows, grid.columns, HeadDim(shape),
      FindRotation(raw, bfloat, scale, grid.rows, grid.columns, HeadDim(shape), {}), kLongReach);
  const ArenaVector<EarlierRow> earlier_rows =
      FindEarlierRows(raw, bfloat, grid.rows, grid.columns, channels.rotation, {}, true);
  for (const EarlierRow& like : earlier_rows) channels.has_earlier_rows |= like.similarity > 0;
  if (channels.has_earlier_rows) {
    for (size_t row = 0; row < grid.rows; ++row) {
      bits += std::log2(kSimilarityClasses);
      if (earlier_rows[row].similarity > 0) bits += std::log2(static_cast<double>(row));
    }
  }
  const LogisticCode code({bfloat}, scale);
  ChannelModel model(std::move(channels));
  Mixture mixture(grid.columns, symbol_bits);
  size_t i = 0;
  for (uint64_t row = 0; row < grid.rows; ++row) {
    model.BeginRow(earlier_rows[row].similarity, earlier_rows[row].distance);
    for (uint64_t group = 0; group < model.groups(); ++group) {
      model.BeginGroup(group);
      for (uint64_t lane = 0; lane < model.lanes(group); ++lane, ++i) {
        const ChannelModel::Expected expected = model.Expect(lane);
        const uint32_t above = FindPlace(row == 0 ? uint16_t{0} : halves[i - grid.columns]);
        bits += mixture.Code(code, expected, FindPlace(halves[i]), above, i % grid.columns);
        model.Set(lane, expected.mean, x[i]);
      }
      model.EndGroup();
    }
    model.EndRow();
  }
  return bits;
}

}  // namespace

std::optional<ChunkBounds> ComputeBounds(const ChunkShape& shape, ByteSpan raw) {
  const bool bfloat = shape.dtype == DType::kBF16;
  const ChunkGrid grid = FindGrid(shape, raw.size());
  if ((shape.dtype != DType::kF16 && !bfloat) || !FitsCdf(grid.rows, grid.columns))
    return std::nullopt;
  // The symbol holds sign, exponent and two mantissa bits of f16, one of bf16.
  const int symbol_bits = bfloat ? 10 : 8, context_bits = bfloat ? 9 : 6;
  StaticTables alone(symbol_bits), above(symbol_bits);
  const size_t values = raw.size() / 2;
  for (size_t i = 0; i < values; ++i) {
    const auto half = LoadLE<uint16_t>(raw.data() + 2 * i);
    const uint32_t symbol = static_cast<uint32_t>(half >> (kPlaceBits - symbol_bits));
    const uint16_t up =
        i < grid.columns ? uint16_t{0} : LoadLE<uint16_t>(raw.data() + 2 * (i - grid.columns));
    alone.Count(0, symbol);
    above.Count(static_cast<uint32_t>(up >> (kPlaceBits - context_bits)), symbol);
  }
  const double rest = static_cast<double>(values) * (kPlaceBits - symbol_bits);
  ChunkBounds bounds;
  bounds.alone_bits = alone.Bits() + rest;
  bounds.above_bits = above.Bits() + rest;
  bounds.mixed_bits = MixedBits(shape, raw, grid, symbol_bits);
  return bounds;
}

}  // namespace kv
