// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/codec/cdf/layers.h"
#include "lib/core/codec/context/earlier_rows.h"
#include "lib/core/codec/rotation.h"
#include "lib/core/kernels/regress.h"

// Regressions of a layer's K and V on other layers and on the columns of the same row, which a
// profile holds for its model. Their weights are small integers: learning rounds them one tap after
// another and lets the taps that follow make up for the error, so that 3 to 5 bits a weight cost
// 0.1 to 0.4 % of an archive. FORMAT.md in this folder, "Regressions", is the grammar.
namespace kv {

constexpr size_t kMostRegressionNeighbours = 12;
// Number of weights in all regressions of a profile, which bounds the memory that reading takes.
constexpr uint64_t kMostRegressionWeights = uint64_t{1} << 28;
constexpr int kMostRegressionWeight = 127;
constexpr size_t kRegressionClasses = 32;
constexpr uint64_t kRegressionHeaderBytes = 20;  // layer, role, counts, bytes of the weights
// More than a chunk could solve for (BlockRegression::kMaxTaps): these weights are only applied.
constexpr uint64_t kMostRegressionTaps = 2048;

// The model of a chunk's frame starts with this knowledge, so that short chunks need not learn it
// (cdf/channel_model.h, ChannelStart). Its weights are the last taps of the regression.
struct RegressionStart {
  uint32_t near = 0;
  std::vector<uint16_t> far;
  // Upper halves of floats: mean squares of errors and of values, one per column; squared errors of
  // each similarity class; errors of the frame's four models, relative to the variance.
  std::vector<uint16_t> variances, powers;
  std::array<uint16_t, kSimilarityClasses> spreads{};
  std::array<uint16_t, kRegressModels> errors{};
  bool operator==(const RegressionStart&) const = default;
};

struct Regression {
  uint32_t layer = 0;
  bool is_value = false;
  uint32_t columns = 0;
  // Columns of a block: all columns of the blocks before it are taps as well. 0 if only neighbours
  // are.
  uint32_t block = 0;
  std::vector<Neighbour> neighbours;
  std::optional<RegressionStart> start;
  // A weight is its integer times the step of its tap times the scale of its column. Both are the
  // upper halves of floats.
  std::vector<uint16_t> steps, scales;
  std::vector<float> constants;  // per column
  std::vector<uint8_t> classes;  // per tap: the distribution of its integers
  Bytes coded;                   // the integers, as rANS slots

  uint64_t taps() const { return steps.size(); }
  // Numbers of taps by kind, in their order: columns of neighbours, columns of the same row, taps
  // of the frame.
  uint64_t neighbour_taps() const;
  uint64_t own_taps() const { return block == 0 ? 0 : (columns - 1) / block * block; }
  uint64_t frame_taps() const { return taps() - neighbour_taps() - own_taps(); }
  // Returns the first column for which a tap has a weight.
  uint64_t FirstColumn(uint64_t tap) const;
  uint64_t weights() const;
  // Returns the bytes that it takes in a profile.
  uint64_t bytes() const;
  bool operator==(const Regression&) const = default;
};

// All regressions of a profile, sorted by layer, K before V.
struct Regressions {
  Rotation rotation;  // rotation of K, the same in all layers
  std::vector<Regression> list;
  bool knows_e4m3 = true;  // false in older profiles, which take e4m3 values for 2^-8 of themselves

  // Returns the regression's place in the list, or the list's size if there is none.
  size_t Find(uint32_t layer, bool is_value) const;
};

// Returns the number of columns of which blocks are multiples: the model predicts kRegressLanes
// columns together, and K is rotated by whole heads.
uint64_t FindBlockUnit(bool is_value, const Rotation& rotation);

void WriteRegressions(const Regressions& regressions, ByteWriter& out);
// Reads regressions with blocks and starts, or those of an older profile, which have neither.
// Throws kTruncated, kBadField, kBadFrame, kLimit and kDuplicateName.
Regressions ReadRegressions(ByteReader& reader, bool extended);

// Sets `classes` and `coded` to code these integers, [tap][column], all of them from
// -kMostRegressionWeight to kMostRegressionWeight. Columns before a tap's first are not coded.
void CodeWeights(std::span<const int8_t> integers, Regression& regression);
// Returns the integers, with zeros before a tap's first column. Throws kBadPayload and
// kTrailingBytes.
std::vector<int8_t> DecodeWeights(const Regression& regression);
// Returns the weights of these integers: [tap][column], rows padded with zeros to `stride`.
std::vector<float> ScaleWeights(const Regression& regression, std::span<const int8_t> integers,
                                uint64_t stride);

// Cuts a float to its upper half, a bf16 value; F32ToBF16 would round.
uint16_t ToUpperHalf(float value);

}  // namespace kv
