// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Finds similar earlier rows (earlier_rows.h). The thorough search compares all channels by 8-bit
// dot products, the quick one only signs of some channels. Either proposes one row; whether
// predicting from it pays is then computed in floats, in an order that is the same on every
// machine.

#include "lib/core/codec/context/earlier_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "lib/core/kernels/lms.h"
#include "lib/core/kernels/similarity.h"

namespace kv {
namespace {

// Rows are compared by their deviations in eighths of the standard deviation, rounded and limited
// to 31. Floats hold whole numbers exactly up to 2^24; a norm summed in floats and a dot product
// converted to a float are therefore exact for every permitted row, and equal on every machine.
constexpr float kStep = 8, kMost = 31;
static_assert(kMost * kMost * kMaxComparedColumns <= 1 << 24);
static_assert(kMaxComparedColumns <= kMaxDotColumns);
// Tile of the search by angle: 64 x 1024 products of 32 bits take 256 KiB, which stays in a
// second-level cache.
constexpr uint64_t kQueries = 64, kCandidates = 1024;
// Number of signature words compared per value of the chunk, which bounds the time of the quick
// search.
constexpr uint64_t kComparedPerValue = 12;
constexpr uint64_t kReach = 1 << 15;      // maximum distance in rows, which bounds the time
constexpr double kLeastVariance = 1e-60;  // 1 / sqrt of this is a finite float

// Rows with their rotation undone, and per channel the mean and the inverse standard deviation.
struct Unrotated {
  uint64_t rows = 0, columns = 0;
  ArenaVector<float> y, mean, inverse;

  Arena* arena() const { return y.get_allocator().arena(); }
  const float* Row(uint64_t row) const { return y.data() + row * columns; }
};
Unrotated Unrotate(ByteSpan values, bool bfloat, uint64_t rows, uint64_t columns,
                   const Rotation& rotation, const RowSteps& steps, Arena* arena) {
  const float scale = bfloat ? 1.0f : 0x1p112f;
  Unrotated all{rows, columns, ArenaVector<float>(rows * columns, arena), {}, {}};
  Rotator rotator(rotation, columns, arena);
  // Sums 64 rows in float and these sums in double: as exact as doubles throughout, and vectorised.
  constexpr uint64_t kTogether = 64;
  ArenaVector<float> x(columns, arena), sum(columns, arena), squares(columns, arena);
  ArenaVector<double> all_sum(columns, arena), all_squares(columns, arena);
  for (uint64_t row = 0; row < rows; ++row) {
    float* out = all.y.data() + row * columns;
    LmsLoad(values.data() + 2 * row * columns, columns, bfloat, scale, x.data(), columns);
    rotator.Rotate(0u - steps[row], x.data(), out);
    for (uint64_t c = 0; c < columns; ++c) {
      sum[c] += out[c];
      squares[c] += out[c] * out[c];
    }
    if (row % kTogether != kTogether - 1 && row + 1 != rows) continue;
    for (uint64_t c = 0; c < columns; ++c) {
      all_sum[c] += static_cast<double>(sum[c]);
      all_squares[c] += static_cast<double>(squares[c]);
      sum[c] = squares[c] = 0;
    }
  }
  const auto n = static_cast<double>(rows);
  for (uint64_t c = 0; c < columns; ++c) {
    sum[c] = static_cast<float>(all_sum[c] / n);
    const double variance = all_squares[c] / n - all_sum[c] / n * (all_sum[c] / n);
    squares[c] = variance > kLeastVariance ? static_cast<float>(1 / std::sqrt(variance)) : 0;
  }
  all.mean = std::move(sum);
  all.inverse = std::move(squares);
  return all;
}

// Approximates log2 within 0.09 from the bits of the float, with the same result on every machine.
float Log2(float x) {
  return static_cast<float>(std::bit_cast<int32_t>(x) - 0x3f800000) * (1.0f / (1 << 23));
}

// Rows rounded to whole steps, and the inverse of each row's norm: 0 for a row of zeros, NaN for a
// row with an element that is not a number.
struct WholeRows {
  uint64_t rows = 0, columns = 0;
  ArenaVector<int8_t> values;
  ArenaVector<float> inverse_norms;
  const int8_t* Row(uint64_t row) const { return values.data() + row * columns; }
};
WholeRows RoundToSteps(const Unrotated& all) {
  const uint64_t rows = all.rows, columns = all.columns;
  WholeRows whole{rows, columns, ArenaVector<int8_t>(rows * columns, all.arena()),
                  ArenaVector<float>(rows, all.arena())};
  for (uint64_t row = 0; row < rows; ++row) {
    float norm = 0;
    int8_t* out = whole.values.data() + row * columns;
    for (uint64_t c = 0; c < columns; ++c) {
      const float deviation = (all.Row(row)[c] - all.mean[c]) * all.inverse[c];
      const float steps = std::clamp(std::nearbyint(deviation * kStep), -kMost, kMost);
      norm += steps * steps;
      out[c] = std::isnan(steps) ? int8_t{0} : static_cast<int8_t>(steps);
    }
    whole.inverse_norms[row] = norm == 0 ? 0 : 1 / std::sqrt(norm);
  }
  return whole;
}

// Returns for each row the earlier row at the smallest angle to it, among those within reach.
ArenaVector<uint32_t> NearestByAngle(const Unrotated& all) {
  KV_ASSERT(all.columns <= kMaxComparedColumns);
  const uint64_t rows = all.rows, columns = all.columns;
  const WholeRows whole = RoundToSteps(all);
  ArenaVector<uint32_t> best(rows, all.arena());
  ArenaVector<float> best_cosine(rows, all.arena());
  ArenaVector<int32_t> products(kQueries * kCandidates, all.arena());
  for (uint64_t first = 0; first < rows; first += kQueries) {
    const uint64_t queries = std::min(kQueries, rows - first);
    for (uint64_t from = first - std::min(first, kReach); from < first + queries;
         from += kCandidates) {
      const uint64_t candidates = std::min(kCandidates, first + queries - from);
      DotProducts8(whole.Row(from), candidates, whole.Row(first), queries, columns,
                   products.data());
      for (uint64_t i = 0; i < candidates; ++i) {
        const uint64_t candidate = from + i;
        // A row may only refer to an earlier one, so the queries begin after the candidate.
        for (uint64_t query = candidate < first ? 0 : candidate + 1 - first; query < queries;
             ++query) {
          const float cosine =
              static_cast<float>(products[i * queries + query]) * whole.inverse_norms[candidate];
          if (cosine <= best_cosine[first + query]) continue;
          best_cosine[first + query] = cosine;
          best[first + query] = static_cast<uint32_t>(candidate);
        }
      }
    }
  }
  return best;
}

// Returns for each row the earlier row whose signature of channel signs differs in the fewest bits.
// Only a window of rows is searched, so that the time per value of the chunk is bounded.
ArenaVector<uint32_t> NearestBySigns(const Unrotated& all) {
  const uint64_t rows = all.rows, columns = all.columns;
  const uint64_t words = columns > 64 ? 2 : 1, bits = std::min<uint64_t>(64 * words, columns);
  const uint64_t window = std::clamp<uint64_t>(kComparedPerValue * columns / words, 64, UINT16_MAX);
  ArenaVector<uint64_t> signatures(words * rows, all.arena());
  ArenaVector<uint32_t> channel_of(bits, all.arena());
  // The signature takes its channels at equal distances across the row.
  for (uint64_t bit = 0; bit < bits; ++bit)
    channel_of[bit] = static_cast<uint32_t>(bit * columns / bits);
  for (uint64_t row = 0; row < rows; ++row) {
    const float* y = all.Row(row);
    for (uint64_t word = 0; word < words; ++word) {
      uint64_t signs = 0;
      for (uint64_t bit = 64 * word; bit < std::min(64 * word + 64, bits); ++bit) {
        const uint32_t c = channel_of[bit];
        signs = signs << 1 | uint64_t{y[c] > all.mean[c]};
      }
      signatures[word * rows + row] = signs;
    }
  }
  ArenaVector<uint32_t> best(rows, all.arena());
  for (uint64_t row = 1; row < rows; ++row) {
    const uint64_t count = std::min(row, window);
    const uint64_t query[2] = {signatures[row], words > 1 ? signatures[rows + row] : 0};
    const NearestSignature nearest =
        FindNearest(signatures.data() + row - count, rows, words, count, query);
    best[row] = static_cast<uint32_t>(row - nearest.age);
  }
  return best;
}

}  // namespace

ArenaVector<EarlierRow> FindEarlierRows(ByteSpan values, bool bfloat, uint64_t rows,
                                        uint64_t columns, const Rotation& rotation,
                                        const RowSteps& steps, bool thorough, Arena* arena) {
  ArenaVector<EarlierRow> earlier_rows(rows, arena);
  const Arena::Scope temporaries(arena);
  const Unrotated all = Unrotate(values, bfloat, rows, columns, rotation, steps, arena);
  const ArenaVector<uint32_t> best = thorough ? NearestByAngle(all) : NearestBySigns(all);
  for (uint64_t row = 1; row < rows; ++row) {
    const DeviationProducts products = ProductsOfDeviations(
        all.Row(row), all.Row(best[row]), all.mean.data(), all.inverse.data(), columns);
    if (!(products.both > 0)) continue;  // also skips sums that are NaN
    // `left` is the share of the row's variance that the similar row does not explain: 1 -
    // cosine^2.
    const float left = 1 - products.both / products.own * (products.both / products.other);
    // Gaussian estimate: explaining variance saves log2(left) / 2 bits per column. Naming the row
    // costs about log2(row) + 4 bits, which must be less.
    const float saved = -0.5f * Log2(std::max(left, 1e-6f)) * static_cast<float>(columns);
    if (!(saved >= Log2(static_cast<float>(row)) + 4)) continue;
    for (uint32_t similarity = 1; similarity < kSimilarityClasses; ++similarity) {
      if (!(left < kSimilarityLimits[similarity])) continue;
      earlier_rows[row] = {similarity, static_cast<uint32_t>(row - best[row])};
      break;
    }
  }
  return earlier_rows;
}

void WriteEarlierRows(const EarlierRowsPlan& plan, CodecScratch& scratch, ByteWriter& out) {
  WriteRotation(plan.rotation, out);
  Arena* const arena = &scratch.context.arena;
  ArenaVector<std::byte> planes(arena);
  planes.reserve(3 * plan.earlier_rows.size());
  for (const EarlierRow& like : plan.earlier_rows)
    planes.push_back(static_cast<std::byte>(like.similarity));
  // Byte planes: the high bytes of distances are mostly equal, which zstd can use.
  for (const uint32_t shift : {0, 8}) {
    for (const EarlierRow& like : plan.earlier_rows)
      planes.push_back(static_cast<std::byte>(like.distance >> shift));
  }
  ArenaVector<std::byte> frame(Zstd::Bound(planes.size()), arena);
  frame.resize(scratch.zstd.Compress(planes, frame));
  KV_ASSERT(!frame.empty());
  out.U32(static_cast<uint32_t>(frame.size()));
  out.Append(frame);
}

EarlierRowsPlan ReadEarlierRows(ByteReader& reader, uint64_t rows, uint64_t columns,
                                CodecScratch& scratch) {
  EarlierRowsPlan plan;
  const uint64_t at = reader.offset();
  plan.rotation = ReadRotation(reader, columns);
  const ByteSpan frame =
      reader.Take(reader.U32("length of the similarity classes"), "similarity classes");
  const std::span<std::byte> planes = scratch.planes.Get(3 * rows).first(3 * rows);
  if (!scratch.zstd.Decompress(frame, planes)) {
    throw Error(Finding::kBadPayload, "the similarity classes do not decode to {} bytes",
                planes.size())
        .At(at);
  }
  plan.earlier_rows = ArenaVector<EarlierRow>(rows, &scratch.context.arena);
  for (uint64_t row = 0; row < rows; ++row) {
    EarlierRow& like = plan.earlier_rows[row];
    like.similarity = static_cast<uint32_t>(planes[row]);
    like.distance = static_cast<uint32_t>(planes[rows + row]) |
                    static_cast<uint32_t>(planes[2 * rows + row]) << 8;
    if (like.similarity >= kSimilarityClasses || like.distance > row ||
        (like.similarity > 0) != (like.distance > 0)) {
      throw Error(Finding::kBadFrame, "row {} cannot have similarity class {} and refer {} rows up",
                  row, like.similarity, like.distance)
          .At(at);
    }
  }
  return plan;
}

std::optional<EarlierRowsPlan> PlanEarlierRows(ByteSpan values, bool bfloat, uint64_t rows,
                                               uint64_t columns, uint64_t head_dim,
                                               const RowSteps& steps, Arena* arena) {
  if (rows < 16) return std::nullopt;
  EarlierRowsPlan plan;
  plan.rotation =
      FindRotation(values, bfloat, bfloat ? 1.0f : 0x1p112f, rows, columns, head_dim, steps, arena);
  plan.earlier_rows =
      FindEarlierRows(values, bfloat, rows, columns, plan.rotation, steps, false, arena);
  uint64_t alike = 0;
  for (const EarlierRow& like : plan.earlier_rows) alike += like.similarity > 0;
  // If fewer than 1 row in 20 resembles an earlier one, the larger header of a like frame does not
  // pay.
  if (alike * 20 < rows) return std::nullopt;
  return plan;
}

}  // namespace kv
