// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/logistic.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "lib/core/codec/cdf/cdf.h"
#include "tests/support/targets.h"

namespace kv {

TEST_CASE("slots of a logistic distribution are those of the reference, on every target") {
  std::mt19937 random(27);
  std::uniform_real_distribution<float> mean_of(-3.9f, 3.9f), octave(-8, 20);
  for (const HalfForm form :
       {HalfForm{false}, HalfForm{true}, HalfForm{false, 7}, HalfForm{false, 8}}) {
    const auto kept = static_cast<uint16_t>(0xffffu << form.byte_shift);
    for (const float scale : {1.0f, 0x1p-30f, 0x1p112f, 0x1p126f}) {
      const LogisticCode code(form, scale);
      for (const size_t count : {0, 1, 7, 8, 9, 31, 1000}) {
        for (const size_t misaligned : {0, 1}) {
          std::vector<uint16_t> halves(misaligned + count);
          std::vector<float> means(misaligned + count), sharpness(misaligned + count);
          for (size_t i = 0; i < halves.size(); ++i) {
            // A quarter of the values are special: the first and the last, zeros, infinities and
            // NaN.
            constexpr uint16_t kSpecial[] = {0xffff, 0x7fff, 0, 0x8000, 0x7f80, 0xfc00, 1};
            const bool special = random() % 4 == 0;
            halves[i] = static_cast<uint16_t>(special ? kSpecial[random() % 7] : random()) & kept;
            means[i] = random() % 8 == 0 ? 0 : mean_of(random);
            sharpness[i] = std::exp2(octave(random));
          }
          const uint16_t* half = halves.data() + misaligned;
          const float *mean = means.data() + misaligned, *sharp = sharpness.data() + misaligned;
          test::ForEachTarget([&](const std::string& target) {
            INFO(target);
            std::vector<LogisticSlot> slots(count);
            code.FindSlots(half, mean, sharp, count, slots.data());
            bool same = true;
            for (size_t i = 0; i < count; ++i) {
              const uint32_t place = FindPlace(half[i], static_cast<int>(form.byte_shift));
              const CodeSlot one = code.FindSlot(place, mean[i], sharp[i]);
              same = same && slots[i].start == one.start && slots[i].size == one.size;
              CodeSlot found;
              same = same && code.Find(one.start, mean[i], sharp[i], found) == half[i] &&
                     code.Find(one.start + one.size - 1, mean[i], sharp[i], found) == half[i];
            }
            REQUIRE(same);
          });
        }
      }
    }
  }
}

}  // namespace kv
