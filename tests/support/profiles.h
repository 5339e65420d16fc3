// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cmath>
#include <random>

#include "lib/core/base/half.h"
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

// Returns a profile of layer 0 with rows of 64 values: K f16, K bf16, V f16, V bf16.
inline std::shared_ptr<const Profile> TrainedProfile(std::string name = "walks") {
  std::vector<ProfileEntry> entries;
  for (const bool is_value : {false, true}) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      ProfileTrainer trainer(0, is_value, dtype, 64);
      for (uint32_t seed = 10; seed < 14; ++seed)
        trainer.Add(ModelRows(dtype, is_value, 500, 64, seed));
      entries.push_back(trainer.Finish());
    }
  }
  return Profile::Make(std::move(name), std::move(entries));
}

}  // namespace kv::test
