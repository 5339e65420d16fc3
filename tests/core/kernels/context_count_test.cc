// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <array>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "lib/core/kernels/counts.h"
#include "tests/support/targets.h"

namespace kv {
namespace {

// Adds up the histograms that the kernel fills in rotation.
std::vector<uint32_t> Sum(const std::vector<uint32_t>& counts, size_t cells) {
  std::vector<uint32_t> sum(cells);
  for (size_t i = 0; i < counts.size(); ++i) sum[i % cells] += counts[i];
  return sum;
}

}  // namespace

TEST_CASE("symbols are counted in context as the reference counts them, on every target") {
  std::mt19937 random(18);
  for (const size_t columns : {1, 15, 16, 31, 32, 33, 64, 511, 513}) {
    for (const size_t rows : {1, 2, 3, 8}) {
      for (const size_t misaligned : {0, 3}) {
        std::vector<uint8_t> symbols(misaligned + rows * columns);
        for (uint8_t& symbol : symbols) symbol = static_cast<uint8_t>(random() & random());
        for (const int cut : {0, 1, 2}) {
          // Contexts by the full symbol above, or by its lowest 64 values.
          for (const uint32_t known : {256, 64}) {
            const uint32_t bits = 8 - static_cast<uint32_t>(cut), contexts = 7;
            std::array<uint32_t, 256> base_of{};
            for (uint32_t s = 0; s < known; ++s) base_of[s] = s % contexts << bits;
            const size_t cells = size_t{contexts} << bits;
            for (const size_t step : {1, 2, 5}) {
              const CountedRows counted{symbols.data() + misaligned, rows, columns, step, cut};
              std::vector<uint32_t> expected(cells);
              ref::CountInContext(counted, base_of.data(), 1, cells, expected.data());
              test::ForEachTarget([&](const std::string& target) {
                INFO(target);
                for (const size_t turns : {1, 2, 4}) {
                  std::vector<uint32_t> counts(turns * cells);
                  CountInContext(counted, base_of.data(), turns, cells, counts.data());
                  REQUIRE(Sum(counts, cells) == expected);
                }
              });
            }
          }
        }
      }
    }
  }
}

TEST_CASE("symbols are counted with their contexts as the reference counts them") {
  std::mt19937 random(19);
  for (const size_t count : {0, 1, 3, 15, 16, 31, 33, 511, 512, 513, 2000}) {
    for (const size_t misaligned : {0, 1}) {
      for (const int bits : {0, 4, 7, 8}) {
        std::vector<uint8_t> contexts(count + misaligned), symbols(count + misaligned);
        for (size_t i = 0; i < contexts.size(); ++i) {
          contexts[i] = static_cast<uint8_t>(random() % (bits == 8 ? 256 : 32));
          symbols[i] = static_cast<uint8_t>(random() % (1u << bits));
        }
        const size_t cells = size_t{256} << bits;
        const uint8_t *context = contexts.data() + misaligned,
                      *symbol = symbols.data() + misaligned;
        std::vector<uint32_t> expected(cells);
        ref::CountWithContexts(context, symbol, count, bits, 1, cells, expected.data());
        test::ForEachTarget([&](const std::string& target) {
          INFO(target << ' ' << count << ' ' << bits);
          for (const size_t turns : {1, 2, 4}) {
            std::vector<uint32_t> counts(turns * cells);
            CountWithContexts(context, symbol, count, bits, turns, cells, counts.data());
            REQUIRE(Sum(counts, cells) == expected);
          }
        });
      }
    }
  }
}

}  // namespace kv
