// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Similar rows as a list of the values that differ (similar_rows.h; FORMAT.md has the grammar of
// codec 30). Gaps between differences and the distances are Rice codes around running means, with
// one mean for the values of each exponent: differences from rounding are more frequent at smaller
// values.

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "lib/core/codec/ref/similar_rows.h"

namespace kv {
namespace {

// Classes are exponents: the largest and the 14 below it have one each, all others share one.
constexpr uint32_t kClasses = 16;
constexpr uint32_t kMostStart = 23;
// Unary quotients of this length are an escape: the full number follows, in kGapBits or
// kDistanceBits.
constexpr uint32_t kMostZeros = 24, kGapBits = 24, kDistanceBits = 16;
// Number of values that a mean remembers; beyond it the past is halved.
constexpr uint32_t kMeanMemory = 16;
// Sentinel: no further difference in this class.
constexpr uint32_t kNoMoreDifferences = UINT32_MAX;

// A running mean that sets the order of Rice codes for the numbers around it.
class LearnedMean {
 public:
  explicit LearnedMean(uint64_t first) : sum_(first) {}
  // Returns how many low bits of a number are written plain: about log2 of the mean.
  uint32_t PlainBits() const {
    uint32_t bits = 0;
    while ((uint64_t{count_} << (bits + 1)) <= sum_) ++bits;
    return bits;
  }
  void Learn(uint32_t number) {
    sum_ += number;
    if (++count_ < kMeanMemory) return;
    sum_ /= 2;
    count_ /= 2;
  }

 private:
  uint64_t sum_;
  uint32_t count_ = 1;
};

class DifferenceBitWriter {
  // Writes bits, the lowest of each byte first.
 public:
  void Put(uint32_t value, uint32_t count) {
    bits_ |= uint64_t{value} << count_;
    for (count_ += count; count_ >= 8; count_ -= 8, bits_ >>= 8)
      out_.U8(static_cast<uint8_t>(bits_));
  }
  ByteSpan Finish() {
    if (count_ > 0) out_.U8(static_cast<uint8_t>(bits_));
    return out_.bytes();
  }

 private:
  ByteWriter out_;
  uint64_t bits_ = 0;
  uint32_t count_ = 0;
};

class DifferenceBitReader {
  // Reads what DifferenceBitWriter wrote.
 public:
  DifferenceBitReader(ByteSpan bytes, uint64_t offset) : bytes_(bytes), offset_(offset) {}

  uint32_t Take(uint32_t count) {
    for (; count_ < count; count_ += 8) {
      if (at_ == bytes_.size())
        throw Error(Finding::kTruncated, "the list of differences ends early").At(offset_ + at_);
      bits_ |= std::to_integer<uint64_t>(bytes_[at_++]) << count_;
    }
    const auto value = static_cast<uint32_t>(bits_ & ((uint64_t{1} << count) - 1));
    bits_ >>= count;
    count_ -= count;
    return value;
  }
  bool AtEnd() const { return at_ == bytes_.size() && count_ < 8 && bits_ == 0; }

 private:
  ByteSpan bytes_;
  uint64_t offset_ = 0;
  size_t at_ = 0;
  uint64_t bits_ = 0;
  uint32_t count_ = 0;
};

// Writes zeros and a one; the one is omitted after `most` zeros, when no other code is possible.
void PutUnary(uint32_t number, uint32_t most, DifferenceBitWriter& out) {
  number == most ? out.Put(0, number) : out.Put(1u << number, number + 1);
}
uint32_t TakeUnary(uint32_t most, DifferenceBitReader& in) {
  uint32_t number = 0;
  while (number < most && in.Take(1) == 0) ++number;
  return number;
}

// Returns the quotient that means "no further difference" among `left` values.
uint32_t ComputeEndQuotient(uint32_t left, uint32_t plain) { return ((left - 1) >> plain) + 1; }

// Writes the number of values of a class before the next one that differs; `left` if there is none.
void PutGap(uint32_t gap, uint32_t left, LearnedMean& mean, DifferenceBitWriter& out) {
  const uint32_t plain = mean.PlainBits(), none = ComputeEndQuotient(left, plain);
  const uint32_t quotient = gap == left ? none : gap >> plain;
  if (none > kMostZeros && quotient >= kMostZeros) {
    PutUnary(kMostZeros, kMostZeros, out);
    out.Put(gap, kGapBits);
  } else {
    PutUnary(quotient, std::min(none, kMostZeros), out);
    if (quotient < none) out.Put(gap & ((1u << plain) - 1), plain);
  }
  if (gap < left) mean.Learn(gap);
}
uint32_t TakeGap(uint32_t left, LearnedMean& mean, DifferenceBitReader& in) {
  const uint32_t plain = mean.PlainBits(), none = ComputeEndQuotient(left, plain);
  const uint32_t quotient = TakeUnary(std::min(none, kMostZeros), in);
  if (quotient == none) return left;
  const bool in_full = quotient == kMostZeros;
  const uint32_t gap = in_full ? in.Take(kGapBits) : quotient << plain | in.Take(plain);
  if (in_full ? gap > left : gap >= left)
    throw Error(Finding::kBadPayload, "a difference lies after the last value");
  if (gap < left) mean.Learn(gap);
  return gap;
}

void PutDistance(uint32_t distance, LearnedMean& mean, DifferenceBitWriter& out) {
  const uint32_t plain = mean.PlainBits(), quotient = std::min(distance >> plain, kMostZeros);
  PutUnary(quotient, kMostZeros, out);
  quotient == kMostZeros ? out.Put(distance, kDistanceBits)
                         : out.Put(distance & ((1u << plain) - 1), plain);
  mean.Learn(distance);
}
uint32_t TakeDistance(LearnedMean& mean, DifferenceBitReader& in) {
  const uint32_t plain = mean.PlainBits(), quotient = TakeUnary(kMostZeros, in);
  const uint32_t distance =
      quotient == kMostZeros ? in.Take(kDistanceBits) : quotient << plain | in.Take(plain);
  mean.Learn(distance);
  return distance;
}

// Numbers values in ascending order. 8-bit floats are numbered without the low bits that they lack.
class Places {
 public:
  explicit Places(HalfForm form)
      : zeros_(form.byte_shift), top_(0x8000u >> zeros_), all_(0xffffu >> zeros_) {}
  uint32_t last() const { return all_; }
  uint32_t Of(uint16_t value) const {
    return value >> zeros_ ^ ((value & 0x8000u) != 0 ? all_ : top_);
  }
  uint16_t At(uint32_t place) const {
    return static_cast<uint16_t>((place ^ ((place & top_) != 0 ? top_ : all_)) << zeros_);
  }

 private:
  uint32_t zeros_, top_, all_;
};

// Computes the class of each expected value, and the number of values in each class.
std::array<uint32_t, kClasses> ClassifyByExponent(const SimilarRows& similar, uint8_t* classes) {
  const uint16_t* expected = similar.expected.data();
  const size_t count = similar.expected.size();
  const uint32_t shift = similar.form.bfloat ? 7 : 10;
  uint16_t most = 0;
  for (size_t i = 0; i < count; ++i)
    most = std::max(most, static_cast<uint16_t>((expected[i] & 0x7fffu) >> shift));
  for (size_t i = 0; i < count; ++i) {
    const auto below = static_cast<uint16_t>(most - ((expected[i] & 0x7fffu) >> shift));
    classes[i] = static_cast<uint8_t>(std::min<uint16_t>(below, kClasses - 1));
  }
  // Four histograms in rotation: equal neighbours in one would stall on store-to-load forwarding.
  std::array<std::array<uint32_t, kClasses>, 4> counts{};
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) ++counts[lane][classes[i + lane]];
  }
  for (; i < count; ++i) ++counts[0][classes[i]];
  for (uint32_t c = 0; c < kClasses; ++c)
    counts[0][c] += counts[1][c] + counts[2][c] + counts[3][c];
  return counts[0];
}

// State of the gaps between differences, with one running mean per class.
struct GapsOfClasses {
  std::vector<LearnedMean> means;
  std::array<uint32_t, kClasses> left;  // values of the class after its last difference

  GapsOfClasses(uint32_t start, const std::array<uint32_t, kClasses>& counts) : left(counts) {
    for (uint32_t c = 0; c < kClasses; ++c) means.emplace_back(1u << (start - std::min(start, c)));
  }
};

struct Difference {
  uint32_t at = 0, rank = 0;  // index among all values, and among the values of its class
};

// Chooses the initial mean of the gaps, halved per class: with each exponent less, differences
// become twice as frequent. A mean that starts too high costs less than one that starts too low.
uint32_t StartFor(const std::array<uint32_t, kClasses>& counts,
                  const std::array<std::vector<Difference>, kClasses>& of_class) {
  uint64_t sum = 0, differences = 0;
  for (uint32_t c = 0; c < kClasses; ++c) {
    const uint64_t some = of_class[c].size();
    if (some == 0) continue;
    sum += some * (static_cast<uint32_t>(std::bit_width(counts[c] / some)) + 1 + c);
    differences += some;
  }
  if (differences == 0) return kMostStart;
  return static_cast<uint32_t>(std::min<uint64_t>(kMostStart, sum / differences));
}

}  // namespace

// Counts in blocks, so that the inner loop vectorises and large counts end early.
uint64_t CountDifferences(const SimilarRows& similar, uint64_t most) {
  constexpr size_t kBlock = 4096;
  uint64_t sum = 0;
  for (size_t begin = 0; begin < similar.values.size() && sum <= most; begin += kBlock) {
    const size_t end = std::min(begin + kBlock, similar.values.size());
    for (size_t i = begin; i < end; ++i) sum += similar.values[i] != similar.expected[i] ? 1 : 0;
  }
  return sum;
}

void EncodeSimilarDifferences(const SimilarRows& similar, CodecScratch& scratch, ByteWriter& out) {
  const size_t count = similar.values.size();
  scratch.context.tables.resize(count);
  uint8_t* classes = scratch.context.tables.data();
  const std::array<uint32_t, kClasses> counts = ClassifyByExponent(similar, classes);
  std::array<std::vector<Difference>, kClasses> of_class;
  std::array<uint32_t, kClasses> seen{};
  // Gaps are counted within a class. A decoder walks all values in order and needs the gap of each
  // class before the class's next value, so the gaps are interleaved: first one per class, then the
  // next gap of a class behind each of its differences.
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t rank = seen[classes[i]]++;
    if (similar.values[i] != similar.expected[i]) of_class[classes[i]].push_back({i, rank});
  }
  const uint32_t start = StartFor(counts, of_class);
  out.U8(static_cast<uint8_t>(start));
  GapsOfClasses gaps(start, counts);
  std::array<size_t, kClasses> next{};
  DifferenceBitWriter bits;
  const auto put_gap = [&](uint32_t c) {
    uint32_t& left = gaps.left[c];
    if (left == 0) return;
    const bool none = next[c] == of_class[c].size();
    const uint32_t gap = none ? left : of_class[c][next[c]].rank - (counts[c] - left);
    PutGap(gap, left, gaps.means[c], bits);
    left -= none ? left : gap + 1;
  };
  std::vector<uint32_t> all;
  for (uint32_t c = 0; c < kClasses; ++c) {
    put_gap(c);
    for (const Difference& one : of_class[c]) all.push_back(one.at);
  }
  std::sort(all.begin(), all.end());
  LearnedMean distances(0);
  const Places places(similar.form);
  for (const uint32_t at : all) {
    const uint16_t expected = similar.expected[at];
    const uint32_t here = places.Of(similar.values[at]), there = places.Of(expected);
    const bool up = here > there;
    const uint32_t distance = up ? here - there : there - here;
    bits.Put(up == ((expected & 0x8000u) == 0) ? 0 : 1, 1);
    PutDistance(distance - 1, distances, bits);
    ++next[classes[at]];
    put_gap(classes[at]);
  }
  out.Append(bits.Finish());
}

void DecodeSimilarDifferences(ByteReader& reader, SimilarRows& similar, CodecScratch& scratch) {
  const uint64_t at = reader.offset();
  const uint32_t start = reader.U8("start of the means");
  if (start > kMostStart) throw Error(Finding::kBadFrame, "means start at 2^{}", start).At(at);
  const size_t count = similar.values.size();
  scratch.context.tables.resize(count);
  uint8_t* classes = scratch.context.tables.data();
  GapsOfClasses gaps(start, ClassifyByExponent(similar, classes));
  std::copy(similar.expected.begin(), similar.expected.end(), similar.values.begin());
  std::fill(similar.factors.begin(), similar.factors.end(), uint8_t{0});
  DifferenceBitReader bits(reader.Take(reader.remaining(), "list of differences"), at + 1);
  std::array<uint32_t, kClasses> to_go;  // values of the class before its next difference
  const auto take_gap = [&](uint32_t c) {
    uint32_t& left = gaps.left[c];
    to_go[c] = kNoMoreDifferences;
    if (left == 0) return;
    const uint32_t gap = TakeGap(left, gaps.means[c], bits);
    if (gap < left) to_go[c] = gap;
    left -= gap < left ? gap + 1 : left;
  };
  for (uint32_t c = 0; c < kClasses; ++c) take_gap(c);
  LearnedMean distances(0);
  const Places places(similar.form);
  for (size_t i = 0; i < count; ++i) {
    if (to_go[classes[i]]-- != 0) continue;
    const bool down = (bits.Take(1) != 0) == ((similar.expected[i] & 0x8000u) == 0);
    const uint32_t distance = TakeDistance(distances, bits) + 1,
                   place = places.Of(similar.expected[i]);
    if (down ? distance > place : distance > places.last() - place)
      throw Error(Finding::kBadPayload, "a difference does not decode to a valid value").At(at);
    similar.values[i] = places.At(down ? place - distance : place + distance);
    take_gap(classes[i]);
  }
  if (!bits.AtEnd()) throw Error(Finding::kBadPayload, "bits are left over").At(at);
}

}  // namespace kv
