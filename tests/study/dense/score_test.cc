// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/dense/score.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"
#include "tests/support/targets.h"

namespace kv::score_test {
namespace {

using Floats = std::vector<float>;

bool SameBits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}
bool SameBits(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!SameBits(a[i], b[i])) return false;
  }
  return true;
}

Floats Normal(size_t count, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  Floats values(count);
  for (float& value : values) value = normal(random);
  return values;
}

size_t BytesOfKey(KeyType type) { return type == KeyType::kF32 ? 4 : 2; }

// `count` keys of `dim` values, `stride` apart, starting `skew` bytes into the buffer.
Bytes MakeKeys(KeyType type, size_t count, size_t dim, size_t stride, size_t skew, uint32_t seed) {
  const Floats values = Normal(count * dim, seed);
  Bytes bytes(skew + count * stride);
  for (size_t i = 0; i < count * dim; ++i) {
    std::byte* to = bytes.data() + skew + i / dim * stride + i % dim * BytesOfKey(type);
    if (type == KeyType::kF32) StoreLE(to, values[i]);
    if (type == KeyType::kF16) StoreLE(to, F32ToF16(values[i]));
    if (type == KeyType::kBF16) StoreLE(to, F32ToBF16(values[i]));
  }
  return bytes;
}

// Softmax in double of row r of a tile over the f16 keys it sees.
std::vector<double> Softmax(const ScoreTile& tile, size_t r) {
  std::vector<double> p(std::min(tile.keys.count, tile.visible + r));
  double most = -INFINITY, total = 0;
  for (size_t j = 0; j < p.size(); ++j) {
    double dot = 0;
    for (size_t i = 0; i < tile.keys.dim; ++i) {
      const std::byte* key = tile.keys.data + j * tile.keys.stride + 2 * i;
      dot += double{tile.queries[r * tile.query_stride + i]} * F16ToF32(LoadLE<uint16_t>(key));
    }
    p[j] = dot * tile.scale;
    most = std::max(most, p[j]);
  }
  for (double& x : p) total += x = std::exp(x - most);
  for (double& x : p) x /= total;
  return p;
}

}  // namespace

TEST_CASE("query logits are the reference's bits on every target", "[score]") {
  test::ForEachTarget([](const std::string& target) {
    for (const KeyType type : {KeyType::kF16, KeyType::kBF16, KeyType::kF32}) {
      for (const size_t dim : {1, 2, 7, 8, 15, 16, 17, 31, 36, 64, 80, 128}) {
        for (const size_t count : {0, 1, 2, 3, 4, 5, 8, 11}) {
          for (const size_t skew : {0, 1, 2, 3}) {
            INFO(target << " dim " << dim << " count " << count << " skew " << skew);
            const size_t stride = dim * BytesOfKey(type) + skew * 5;
            const Bytes bytes = MakeKeys(type, count, dim, stride, skew, 7);
            const KeyRows keys{bytes.data() + skew, type, stride, count, dim};
            const Floats query = Normal(dim, 3);
            Floats expected(count + 1, 42.0f), got(count + 1, 42.0f);
            ref::QueryLogits(query.data(), keys, 0.125f, expected.data());
            QueryLogits(query.data(), keys, 0.125f, got.data());
            REQUIRE(SameBits(got, expected));
          }
        }
      }
    }
  });
}

TEST_CASE("every 16-bit float widens the same way inside the logits", "[score]") {
  Bytes bytes(2 * 65536);
  for (uint32_t i = 0; i < 65536; ++i) {
    StoreLE(bytes.data() + 2 * size_t{i}, static_cast<uint16_t>(i));
  }
  test::ForEachTarget([&](const std::string& target) {
    INFO(target);
    for (const KeyType type : {KeyType::kF16, KeyType::kBF16}) {
      const KeyRows keys{bytes.data(), type, 32, 4096, 16};
      for (size_t lane = 0; lane < 16; ++lane) {
        Floats query(16), expected(4096), got(4096);
        query[lane] = 1.0f;
        ref::QueryLogits(query.data(), keys, 1.0f, expected.data());
        QueryLogits(query.data(), keys, 1.0f, got.data());
        REQUIRE(SameBits(got, expected));
      }
    }
  });
}

TEST_CASE("weights and block sums are the reference's bits on every target", "[score]") {
  test::ForEachTarget([](const std::string& target) {
    for (const size_t count : {0, 1, 2, 5, 15, 16, 17, 31, 33, 64, 65, 130, 200}) {
      const Floats row = Normal(count, static_cast<uint32_t>(count), 20.0f);
      const float maximum = ref::RowMaximum(row.data(), count);
      INFO(target << " count " << count);
      REQUIRE(SameBits(RowMaximum(row.data(), count), maximum));
      Floats expected = row, got = row;
      ref::ExpRow(expected.data(), count, maximum);
      ExpRow(got.data(), count, maximum);
      REQUIRE(SameBits(got, expected));
      Floats sums = Normal(count, 1), sums_expected = sums;
      ref::AddScaled(row.data(), count, 0.3f, sums_expected.data());
      AddScaled(row.data(), count, 0.3f, sums.data());
      REQUIRE(SameBits(sums, sums_expected));
      for (const size_t block : {1, 3, 16, 17, 32, 48, 64, 256}) {
        INFO("block " << block);
        const auto blocks = (count + block - 1) / block;
        Floats want(blocks), by_block(blocks), fused(blocks), scratch = row, in_place = row;
        const double total = ref::BlockSums(expected.data(), count, block, want.data());
        REQUIRE(BlockSums(expected.data(), count, block, by_block.data()) == total);
        REQUIRE(SameBits(by_block, want));
        REQUIRE(ExpBlockSums(scratch.data(), count, maximum, block, fused.data()) == total);
        REQUIRE(SameBits(fused, want));
        ExpBlockSums(in_place.data(), count, maximum, block, in_place.data());
        in_place.resize(blocks);
        REQUIRE(SameBits(in_place, want));
      }
    }
  });
}

TEST_CASE("exp is within two ulp, exact at 0, and keeps its manners at the ends", "[score]") {
  for (float x = 0.0f; x > -87.0f; x -= 0.00371f) {
    const double expected = std::exp(double{x});
    const auto near = static_cast<float>(expected);
    REQUIRE(std::abs(ref::Exp(x) - expected) <= 2.0 * (std::nextafter(near, 2.0f) - near));
  }
  CHECK(ref::Exp(0.0f) == 1.0f);
  CHECK(ref::Exp(-87.5f) == 0.0f);
  CHECK(ref::Exp(-INFINITY) == 0.0f);
  CHECK(std::isnan(ref::Exp(NAN)));
  test::ForEachTarget([](const std::string& target) {
    INFO(target);
    Floats row(33, -INFINITY);
    row[5] = NAN;
    row[20] = 2.0f;
    CHECK(RowMaximum(row.data(), row.size()) == 2.0f);
    ExpRow(row.data(), row.size(), 2.0f);
    CHECK(row[20] == 1.0f);
    CHECK(row[0] == 0.0f);
    CHECK(std::isnan(row[5]));
  });
}

TEST_CASE("tiles give the softmax of double arithmetic", "[score]") {
  for (const size_t dim : {8, 64, 128}) {
    for (const size_t visible : {1, 5, 300}) {
      for (const size_t rows : {1, 3, 128}) {
        INFO("dim " << dim << " visible " << visible << " rows " << rows);
        const size_t count = visible + rows - 1;
        const Bytes bytes = MakeKeys(KeyType::kF16, count, dim, dim * 2, 0, 11);
        const Floats queries = Normal(rows * dim, 12), weights = Normal(rows, 4);
        const KeyRows keys{bytes.data(), KeyType::kF16, dim * 2, count, dim};
        const ScoreTile tile{queries.data(), dim, rows, keys, visible, 0.2f};
        REQUIRE(tile.columns() == count);
        Floats scratch(BlockSumScratchFloats(dim, count));
        for (const size_t block : {1, 32, 50}) {
          Floats sums(count / block + 1);
          std::vector<double> expected(count / block + 1);
          AddTileBlockSums(tile, block, weights.data(), scratch.data(), sums.data());
          for (size_t r = 0; r < rows; ++r) {
            const std::vector<double> p = Softmax(tile, r);
            for (size_t j = 0; j < p.size(); ++j) expected[j / block] += weights[r] * p[j];
          }
          for (size_t b = 0; b < sums.size(); ++b) {
            REQUIRE(sums[b] == Approx(expected[b]).margin(2e-4));
          }
        }
      }
    }
  }
}

TEST_CASE("block sums of a tile are the reference's bits on every target", "[score]") {
  test::ForEachTarget([](const std::string& target) {
    for (const KeyType type : {KeyType::kF16, KeyType::kBF16, KeyType::kF32}) {
      for (const size_t dim : {1, 8, 17, 64}) {
        for (const size_t rows : {1, 3, 64, 70}) {
          for (const size_t visible : {0, 1, 6, 131}) {
            INFO(target << " dim " << dim << " rows " << rows << " visible " << visible);
            const size_t count = visible + rows - 1, stride = dim * BytesOfKey(type) + 3;
            const Bytes bytes = MakeKeys(type, count, dim, stride, 1, 11);
            const Floats queries = Normal(rows * dim, 12, 3.0f), weights = Normal(rows, 4);
            const KeyRows keys{bytes.data() + 1, type, stride, count, dim};
            const ScoreTile tile{queries.data(), dim, rows, keys, visible, 0.2f};
            Floats scratch(BlockSumScratchFloats(dim, count));
            for (const size_t block : {1, 5, 64, 100}) {
              Floats sums = Normal(count / block + 1, 9), expected = sums;
              ref::AddTileBlockSums(tile, block, weights.data(), expected.data());
              AddTileBlockSums(tile, block, weights.data(), scratch.data(), sums.data());
              REQUIRE(SameBits(sums, expected));
            }
          }
        }
      }
    }
  });
}

TEST_CASE("a NaN key spoils the rows that see it, on every target", "[score]") {
  test::ForEachTarget([](const std::string& target) {
    INFO(target);
    const size_t dim = 4, rows = 3;
    Floats keys{1, 2, 3, 4, 4, 3, 2, 1, NAN, 1, 1, 1};
    const Floats queries = Normal(rows * dim, 1);
    const KeyRows key_rows{reinterpret_cast<const std::byte*>(keys.data()), KeyType::kF32, 16, 3,
                           dim};
    const ScoreTile tile{queries.data(), dim, rows, key_rows, 1, 1.0f};
    Floats scratch(BlockSumScratchFloats(dim, 3)), sums(3);
    const Floats first_two{1, 1, 0};
    AddTileBlockSums(tile, 1, first_two.data(), scratch.data(), sums.data());
    CHECK(std::isnan(sums[2]));
    Floats of_two(2);
    ScoreTile two = tile;
    two.rows = 2;
    AddTileBlockSums(two, 1, nullptr, scratch.data(), of_two.data());
    CHECK(of_two[0] + of_two[1] == Approx(2.0f));
  });
}

TEST_CASE("one query and a tile of one row agree", "[score]") {
  const size_t dim = 80, count = 333;
  const Bytes bytes = MakeKeys(KeyType::kBF16, count, dim, dim * 2, 0, 5);
  const Floats query = Normal(dim, 6);
  const KeyRows keys{bytes.data(), KeyType::kBF16, dim * 2, count, dim};
  Floats one(count), row(count), scratch(TileScratchFloats(dim));
  QueryLogits(query.data(), keys, 0.1f, one.data());
  TileLogits({query.data(), dim, 1, keys, count, 0.1f}, row.data(), count, scratch.data());
  for (size_t i = 0; i < count; ++i) REQUIRE(row[i] == Approx(one[i]).margin(1e-4));
}

TEST_CASE("flash weights are measured against the maximum so far", "[score]") {
  // 130 rising logits: each sub-block of 64 ends with its own maximum, which has weight 1.
  Floats logits(130);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = 0.1f * static_cast<float>(i);
  Floats flash_row = logits, exact_row = logits, flash(3), exact(3);
  WeighRow(flash_row.data(), 130, WeightRule::kFlashLocal);
  WeighRow(exact_row.data(), 130, WeightRule::kSoftmax);
  AddInOrder(flash_row.data(), 130, 64, flash.data());
  AddInOrder(exact_row.data(), 130, 64, exact.data());
  for (const size_t last : {63, 127, 129}) CHECK(flash_row[last] == 1.0f);
  CHECK(flash[0] == Approx(flash[1]));  // both rise in the same way, whatever follows
  CHECK(exact[0] < 0.01f * exact[1]);
  CHECK(exact[0] + exact[1] + exact[2] == Approx(1.0f));
  // A falling row has one maximum, so both rules agree except for the normalisation.
  for (float& x : logits) x = -x;
  Floats falling_flash = logits, falling_exact = logits, a(3), b(3);
  WeighRow(falling_flash.data(), 130, WeightRule::kFlashLocal);
  WeighRow(falling_exact.data(), 130, WeightRule::kSoftmax);
  AddInOrder(falling_flash.data(), 130, 64, a.data());
  AddInOrder(falling_exact.data(), 130, 64, b.data());
  CHECK(a[1] / a[0] == Approx(b[1] / b[0]));
}

}  // namespace kv::score_test
