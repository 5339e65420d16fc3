// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

#include "lib/core/codec/profiled/regressions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/core/codec/cdf/cdf.h"
#include "lib/core/codec/cdf/channel_model.h"

namespace kv {
namespace {

constexpr size_t kMostRegressions = 1024;
constexpr uint32_t kPlaces = 2 * kMostRegressionWeight + 1;

// The shares of the integers of one class, which fall off geometrically on both sides of 0. All
// classes follow from integers alone, so a profile stores none of them.
struct WeightShares {
  std::array<uint32_t, kPlaces + 1> before{};  // by place: the integer plus the largest one

  uint32_t total() const { return before.back(); }
  CodeSlot GetSlot(uint32_t place) const {
    return MakeShare(before[place], before[place + 1] - before[place], total());
  }
};

// Returns the shares of each class: FORMAT.md, "Integers", has this recursion.
const std::array<WeightShares, kRegressionClasses>& ListShares() {
  static const auto all = [] {
    std::array<WeightShares, kRegressionClasses> shares;
    uint32_t fall = 63000;
    for (WeightShares& one : shares) {
      std::array<uint32_t, kMostRegressionWeight + 1> sizes;
      uint64_t size = 1 << 16;
      for (uint32_t& each : sizes) {
        each = static_cast<uint32_t>(size) + 1;
        size = size * (65536 - fall) >> 16;
      }
      for (uint32_t place = 0; place < kPlaces; ++place) {
        const int value = static_cast<int>(place) - kMostRegressionWeight;
        one.before[place + 1] = one.before[place] + sizes[static_cast<size_t>(std::abs(value))];
      }
      fall = fall * 7 / 8;
    }
    return shares;
  }();
  return all;
}

[[noreturn]] void BadRegression(std::string_view what, uint64_t at) {
  throw Error(Finding::kBadField, "a regression cannot have {}", what).At(at);
}

std::vector<uint16_t> ReadUpperHalves(ByteReader& reader, uint64_t count, const char* what) {
  const uint64_t at = reader.offset();
  const ByteSpan bytes = reader.TakeArray(count, 2, what);
  std::vector<uint16_t> halves(count);
  for (uint64_t i = 0; i < count; ++i) {
    halves[i] = LoadLE<uint16_t>(bytes.data() + 2 * i);
    const float value = BF16ToF32(halves[i]);
    if (!std::isfinite(value) || std::signbit(value)) BadRegression(what, at + 2 * i);
  }
  return halves;
}

void ReadRegressionNeighbours(ByteReader& reader, uint32_t count, Regression& one) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t at = reader.offset();
    const Neighbour neighbour = ReadNeighbour(reader);
    // A layer's V may use its K; everything else comes from the layers before.
    const bool own_key = one.is_value && !neighbour.is_value && neighbour.layer == one.layer;
    if (neighbour.layer >= one.layer && !own_key) BadRegression("such a neighbour", at);
    one.neighbours.push_back(neighbour);
    if (one.neighbour_taps() + one.own_taps() > kMostRegressionTaps)
      BadRegression("so many taps", at);
  }
}

// Reads the fields that say which columns of its own rows a regression uses.
void ReadOwnTaps(ByteReader& reader, const Rotation& rotation, Regression& one) {
  const uint64_t at = reader.offset();
  one.block = reader.U16("columns of a block");
  if (one.block % FindBlockUnit(one.is_value, rotation) != 0 || one.block >= one.columns)
    BadRegression("such a block", at);
  const uint32_t starts = reader.U8("flag of a start"), near = reader.U8("near channels"),
                 far = reader.U8("far channels"), zero = reader.U8("reserved field");
  if (starts > 1 || zero != 0 || (starts == 0 && (near != 0 || far != 0)))
    BadRegression("such flags", at + 2);
  if (near > ChannelModel::kMaxNear || near >= one.columns || far > ChannelModel::kMaxFar)
    BadRegression("so many channels of the row", at + 3);
  if (starts == 0) return;
  one.start.emplace().near = near;
  one.start->far.resize(far);
}

void ReadFarTaps(ByteReader& reader, Regression& one) {
  for (uint16_t& distance : one.start->far) {
    const uint64_t at = reader.offset();
    distance = reader.U16("far channel");
    if (!IsFarTap(distance, one.start->near, one.columns)) BadRegression("such a far channel", at);
  }
}

void ReadStart(ByteReader& reader, Regression& one) {
  RegressionStart& start = *one.start;
  start.variances = ReadUpperHalves(reader, one.columns, "such a variance");
  start.powers = ReadUpperHalves(reader, one.columns, "such a power");
  std::ranges::copy(ReadUpperHalves(reader, start.spreads.size(), "such a spread"),
                    start.spreads.begin());
  std::ranges::copy(ReadUpperHalves(reader, start.errors.size(), "such an error"),
                    start.errors.begin());
}

Regression ReadRegression(ByteReader& reader, bool extended, const Rotation& rotation) {
  const uint64_t at = reader.offset();
  Regression one;
  one.layer = reader.U32("layer");
  const uint32_t role = reader.U8("role"), count = reader.U8("number of neighbours");
  if (role != 1 && role != 2) BadRegression("a role other than K and V", at + 4);
  if (count > kMostRegressionNeighbours) BadRegression("so many neighbours", at + 5);
  one.is_value = role == 2;
  one.columns = reader.U16("columns");
  if (one.columns == 0 || one.columns > BlockRegression::kMaxColumns)
    BadRegression("such columns", at + 6);
  if (extended) ReadOwnTaps(reader, rotation, one);
  ReadRegressionNeighbours(reader, count, one);
  uint64_t taps = one.neighbour_taps() + one.own_taps();
  if (one.start) {
    ReadFarTaps(reader, one);
    const bool rotates = !one.is_value && !rotation.angles.empty();
    taps += CountFrameTaps(rotates, one.start->near, one.start->far.size());
  }
  one.steps = ReadUpperHalves(reader, taps, "such a step");
  one.scales = ReadUpperHalves(reader, one.columns, "such a scale");
  const ByteSpan constants = reader.TakeArray(one.columns, 4, "constants");
  for (uint64_t c = 0; c < one.columns; ++c) {
    one.constants.push_back(std::bit_cast<float>(LoadLE<uint32_t>(constants.data() + 4 * c)));
    if (!std::isfinite(one.constants.back())) BadRegression("such a constant", at);
  }
  for (const std::byte each : reader.Take(taps, "classes")) {
    one.classes.push_back(static_cast<uint8_t>(each));
    if (one.classes.back() >= kRegressionClasses) BadRegression("such a class", at);
  }
  if (one.start) ReadStart(reader, one);
  const ByteSpan coded = reader.Take(reader.U32("bytes of weights"), "weights");
  one.coded.assign(coded.begin(), coded.end());
  return one;
}

void WriteHalves(std::span<const uint16_t> halves, ByteWriter& out) {
  for (const uint16_t half : halves) out.U16(half);
}

void WriteRegression(const Regression& one, ByteWriter& out) {
  out.U32(one.layer);
  out.U8(one.is_value ? 2 : 1);
  out.U8(static_cast<uint8_t>(one.neighbours.size()));
  out.U16(static_cast<uint16_t>(one.columns));
  out.U16(static_cast<uint16_t>(one.block));
  out.U8(one.start ? 1 : 0);
  out.U8(one.start ? static_cast<uint8_t>(one.start->near) : 0);
  out.U8(one.start ? static_cast<uint8_t>(one.start->far.size()) : 0);
  out.U8(0);
  for (const Neighbour& neighbour : one.neighbours) WriteNeighbour(neighbour, out);
  if (one.start) WriteHalves(one.start->far, out);
  WriteHalves(one.steps, out);
  WriteHalves(one.scales, out);
  for (const float constant : one.constants) out.U32(std::bit_cast<uint32_t>(constant));
  out.Append(std::as_bytes(std::span(one.classes)));
  if (one.start) {
    WriteHalves(one.start->variances, out);
    WriteHalves(one.start->powers, out);
    WriteHalves(one.start->spreads, out);
    WriteHalves(one.start->errors, out);
  }
  out.U32(static_cast<uint32_t>(one.coded.size()));
  out.Append(one.coded);
}

}  // namespace

uint64_t FindBlockUnit(bool is_value, const Rotation& rotation) {
  const uint64_t head = is_value ? 0 : 2 * rotation.angles.size();
  return std::lcm(kRegressLanes, std::max<uint64_t>(head, 1));
}

uint64_t Regression::neighbour_taps() const {
  uint64_t taps = 0;
  for (const Neighbour& one : neighbours) taps += one.columns;
  return taps;
}

uint64_t Regression::FirstColumn(uint64_t tap) const {
  const uint64_t begin = neighbour_taps();
  if (tap < begin || tap >= begin + own_taps()) return 0;
  return ((tap - begin) / block + 1) * block;
}

uint64_t Regression::weights() const {
  uint64_t count = (neighbour_taps() + frame_taps()) * columns;
  for (uint64_t begin = block; block > 0 && begin < columns; begin += block)
    count += block * (columns - begin);
  return count;
}

uint64_t Regression::bytes() const {
  uint64_t bytes = kRegressionHeaderBytes + 8 * neighbours.size() + 3 * taps() +
                   6 * uint64_t{columns} + coded.size();
  if (start)
    bytes += 2 * (start->far.size() + 2 * columns + start->spreads.size() + start->errors.size());
  return bytes;
}

uint16_t ToUpperHalf(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

size_t Regressions::Find(uint32_t layer, bool is_value) const {
  const auto at = std::ranges::lower_bound(list, std::pair(layer, is_value), {}, [](const auto& r) {
    return std::pair(r.layer, r.is_value);
  });
  const bool found = at != list.end() && at->layer == layer && at->is_value == is_value;
  return found ? static_cast<size_t>(at - list.begin()) : list.size();
}

void WriteRegressions(const Regressions& regressions, ByteWriter& out) {
  WriteRotation(regressions.rotation, out);
  out.U32(static_cast<uint32_t>(regressions.list.size()));
  for (const Regression& one : regressions.list) WriteRegression(one, out);
}

Regressions ReadRegressions(ByteReader& reader, bool extended) {
  Regressions all;
  all.knows_e4m3 = extended;
  all.rotation = ReadRotation(reader, ChannelModel::kMaxColumns);
  const uint64_t at = reader.offset();
  const uint32_t count = reader.U32("number of regressions");
  if (count == 0 || count > kMostRegressions) {
    throw Error(Finding::kLimit, "the profile has {} regressions, expected 1 to {}", count,
                kMostRegressions)
        .At(at);
  }
  uint64_t weights = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t begin = reader.offset();
    Regression one = ReadRegression(reader, extended, all.rotation);
    weights += one.weights();
    if (weights > kMostRegressionWeights) {
      throw Error(Finding::kLimit, "the regressions have more than {} weights",
                  kMostRegressionWeights)
          .At(begin);
    }
    if (i > 0 && std::pair(all.list.back().layer, all.list.back().is_value) >=
                     std::pair(one.layer, one.is_value)) {
      throw Error(Finding::kDuplicateName, "the regressions of the profile are not in order")
          .At(begin);
    }
    all.list.push_back(std::move(one));
  }
  return all;
}

// Takes the class whose distribution codes each tap's integers in the fewest bits.
void CodeWeights(std::span<const int8_t> integers, Regression& regression) {
  const auto& shares = ListShares();
  const uint64_t columns = regression.columns;
  std::array<std::array<double, kPlaces>, kRegressionClasses> cost;
  for (size_t k = 0; k < kRegressionClasses; ++k) {
    for (uint32_t place = 0; place < kPlaces; ++place)
      cost[k][place] = kSlotBits - std::log2(shares[k].GetSlot(place).size);
  }
  std::vector<CodeSlot> slots;
  slots.reserve(integers.size());
  regression.classes.clear();
  for (uint64_t tap = 0; tap < regression.taps(); ++tap) {
    const uint64_t first = regression.FirstColumn(tap);
    const std::span<const int8_t> row = integers.subspan(tap * columns + first, columns - first);
    const auto place_of = [](int8_t value) {
      return static_cast<uint32_t>(value + kMostRegressionWeight);
    };
    size_t best = 0;
    double least = HUGE_VAL;
    for (size_t k = 0; k < kRegressionClasses; ++k) {
      double bits = 0;
      for (const int8_t value : row) bits += cost[k][place_of(value)];
      if (bits >= least) continue;
      least = bits;
      best = k;
    }
    regression.classes.push_back(static_cast<uint8_t>(best));
    for (const int8_t value : row) slots.push_back(shares[best].GetSlot(place_of(value)));
  }
  ByteWriter out;
  WriteSlots(slots, out);
  regression.coded = out.Release();
}

std::vector<int8_t> DecodeWeights(const Regression& regression) {
  ByteReader reader(regression.coded);
  SlotReader slots(reader);
  const uint64_t columns = regression.columns;
  std::vector<int8_t> integers(regression.taps() * columns);
  for (uint64_t tap = 0; tap < regression.taps(); ++tap) {
    const WeightShares& shares = ListShares()[regression.classes[tap]];
    const uint32_t unit = kSlotTotal / shares.total();
    for (uint64_t column = regression.FirstColumn(tap); column < columns; ++column) {
      const uint32_t target = slots.target() / unit;
      if (target >= shares.total()) slots.Refuse("a weight lies in no slot");
      const auto after = std::ranges::upper_bound(shares.before, target);
      const auto place = static_cast<uint32_t>(after - shares.before.begin()) - 1;
      slots.Take(shares.GetSlot(place));
      integers[tap * columns + column] =
          static_cast<int8_t>(static_cast<int>(place) - kMostRegressionWeight);
    }
  }
  slots.CheckEnd();
  return integers;
}

std::vector<float> ScaleWeights(const Regression& regression, std::span<const int8_t> integers,
                                uint64_t stride) {
  std::vector<float> weights(regression.taps() * stride);
  std::vector<float> scales;
  for (const uint16_t scale : regression.scales) scales.push_back(BF16ToF32(scale));
  const int8_t* from = integers.data();
  for (uint64_t tap = 0; tap < regression.taps(); ++tap, from += regression.columns) {
    const float step = BF16ToF32(regression.steps[tap]);
    float* row = weights.data() + tap * stride;
    for (uint64_t c = 0; c < regression.columns; ++c)
      row[c] = (static_cast<float>(from[c]) * step) * scales[c];
  }
  return weights;
}

}  // namespace kv
