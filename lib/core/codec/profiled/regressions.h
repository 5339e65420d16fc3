// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/codec/cdf/layers.h"
#include "lib/core/codec/rotation.h"

// Regressions of a layer's K and V on other layers, which a profile holds for its model. Their
// weights are small integers: learning rounds them one tap after another and lets the taps that
// follow make up for the error, so that 3 to 5 bits a weight cost 0.1 to 0.4 % of an archive.
// FORMAT.md in this folder, "Regressions", is the grammar.
namespace kv {

constexpr size_t kMostRegressionNeighbours = 8;
// Number of weights in all regressions of a profile, which bounds the memory that reading takes.
constexpr uint64_t kMostRegressionWeights = uint64_t{1} << 28;
constexpr int kMostRegressionWeight = 127;
constexpr size_t kRegressionClasses = 32;
constexpr uint64_t kRegressionHeaderBytes = 12;  // layer, role, counts, bytes of the weights

struct Regression {
  uint32_t layer = 0;
  bool is_value = false;
  uint32_t columns = 0;
  std::vector<Neighbour> neighbours;
  // A weight is its integer times the step of its tap times the scale of its column. Both are the
  // upper halves of floats.
  std::vector<uint16_t> steps, scales;
  std::vector<float> constants;  // per column
  std::vector<uint8_t> classes;  // per tap: the distribution of its integers
  Bytes coded;                   // the integers, as rANS slots

  uint64_t taps() const { return steps.size(); }
  uint64_t weights() const { return taps() * columns; }
  // Returns the bytes that it takes in a profile.
  uint64_t bytes() const {
    return kRegressionHeaderBytes + 8 * neighbours.size() + 3 * taps() + 6 * uint64_t{columns} +
           coded.size();
  }
  bool operator==(const Regression&) const = default;
};

// All regressions of a profile, sorted by layer, K before V.
struct Regressions {
  Rotation rotation;  // of K in all layers
  std::vector<Regression> list;

  // Returns the regression's place in the list, or the list's size if there is none.
  size_t Find(uint32_t layer, bool is_value) const;
};

void WriteRegressions(const Regressions& regressions, ByteWriter& out);
// Throws kTruncated, kBadField, kBadFrame, kLimit and kDuplicateName.
Regressions ReadRegressions(ByteReader& reader);

// Sets `classes` and `coded` to code these integers, [tap][column], all of them from
// -kMostRegressionWeight to kMostRegressionWeight.
void CodeWeights(std::span<const int8_t> integers, Regression& regression);
// Returns the integers. Throws kBadPayload and kTrailingBytes.
std::vector<int8_t> DecodeWeights(const Regression& regression);
// Returns the weights of these integers: [tap][column], rows padded with zeros to `stride`.
std::vector<float> ScaleWeights(const Regression& regression, std::span<const int8_t> integers,
                                uint64_t stride);

// Cuts a float to its upper half, a bf16 value; F32ToBF16 would round.
uint16_t ToUpperHalf(float value);

}  // namespace kv
