// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cmath>
#include <random>

#include "lib/core/base/half.h"
#include "lib/core/codec/cdf/channel_model.h"
#include "lib/core/codec/profiled/profile.h"

// A profile of synthetic K and V, and rows like those that it learnt from.
namespace kv::test {

// K: channels that are correlated with their previous value. V: every second row is one of 32.
inline Bytes ModelRows(DType dtype, bool is_value, uint64_t rows, uint32_t columns, uint32_t seed) {
  std::mt19937 random(seed), fixed(1);
  const auto noise = [](std::mt19937& from) {
    return static_cast<float>(from() % 2001) / 1000.0f - 1.0f;
  };
  std::vector<float> state(columns), known(32 * columns);
  for (float& value : state) value = noise(random);
  for (float& value : known) value = noise(fixed);
  Bytes raw(rows * columns * 2);
  for (uint64_t row = 0; row < rows; ++row) {
    const uint32_t which = random() % 64;
    for (uint32_t c = 0; c < columns; ++c) {
      state[c] = 0.95f * state[c] + 0.2f * noise(random);
      const float value = is_value && which < 32 ? known[which * columns + c]
                                                 : state[c] + static_cast<float>(c % 5);
      StoreLE(raw.data() + 2 * (row * columns + c),
              dtype == DType::kF16 ? F32ToF16(value) : F32ToBF16(value));
    }
  }
  return raw;
}

// Returns regressions of rows of 32 and 64 values on nothing, which expect constants, and one of
// rows of 16 values on two neighbours with 16 and 7 columns.
inline Regressions SmallRegressions() {
  Regressions all;
  for (const uint32_t columns : {32u, 64u, 16u}) {
    Regression one;
    one.layer = static_cast<uint32_t>(all.list.size()) + 2;
    one.columns = columns;
    if (columns == 16) one.neighbours = {{1, false, 16}, {2, true, 7}};
    for (const Neighbour& neighbour : one.neighbours)
      one.steps.insert(one.steps.end(), neighbour.columns, ToUpperHalf(0.25f));
    one.scales.assign(columns, ToUpperHalf(0.5f));
    for (uint32_t c = 0; c < columns; ++c) one.constants.push_back(static_cast<float>(c % 5));
    std::vector<int8_t> integers(one.weights());
    for (size_t i = 0; i < integers.size(); ++i)
      integers[i] = static_cast<int8_t>(static_cast<int>(i * 5 % 9) - 4);
    CodeWeights(integers, one);
    all.list.push_back(std::move(one));
  }
  all.rotation = {8, std::vector<uint32_t>(8, 0x01000000)};
  return all;
}

// Gives a regression of at least 48 columns blocks of 16 columns and a start, with weights that no
// training would find.
inline void AddRowTaps(bool rotates, Regression& one) {
  one.block = 16;
  RegressionStart& start = one.start.emplace();
  start.near = 3;
  start.far = {16, 40};
  start.variances.assign(one.columns, ToUpperHalf(0.01f));
  start.powers.assign(one.columns, ToUpperHalf(0.5f));
  start.spreads.fill(ToUpperHalf(0.5f));
  start.errors.fill(ToUpperHalf(1.5f));
  one.steps.insert(one.steps.end(),
                   one.own_taps() + CountFrameTaps(rotates, start.near, start.far.size()),
                   ToUpperHalf(0.125f));
  std::vector<int8_t> integers(one.taps() * one.columns);
  for (uint64_t tap = 0; tap < one.taps(); ++tap) {
    for (uint64_t c = one.FirstColumn(tap); c < one.columns; ++c)
      integers[tap * one.columns + c] = static_cast<int8_t>(static_cast<int>((tap + c) % 5) - 2);
  }
  CodeWeights(integers, one);
}

// Returns a profile of layer 0 with rows of 64 values: K f16, K bf16, V f16, V bf16; and with
// regressions.
inline std::shared_ptr<const Profile> TrainedProfile(
    std::string name = "walks", const Regressions& regressions = SmallRegressions()) {
  std::vector<ProfileEntry> entries;
  for (const bool is_value : {false, true}) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      ProfileTrainer trainer(0, is_value, dtype, 64);
      for (uint32_t seed = 10; seed < 14; ++seed)
        trainer.Add(ModelRows(dtype, is_value, 500, 64, seed));
      entries.push_back(trainer.Finish());
    }
  }
  return Profile::Make(std::move(name), std::move(entries), regressions);
}

// Changes one byte of a profile, makes its hash right, and returns the finding of reading it.
inline std::optional<Finding> ReadChanged(Bytes file, size_t at, std::byte value) {
  file.at(at) = value;
  const Hash128Bytes hash = Hash128(ByteSpan(file).first(file.size() - 16));
  std::copy(hash.begin(), hash.end(), file.end() - 16);
  try {
    Profile::Read(file);
  } catch (const Error& error) {
    return error.finding();
  }
  return std::nullopt;
}

}  // namespace kv::test
