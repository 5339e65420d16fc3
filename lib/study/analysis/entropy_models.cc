// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Counts of the entropy models that analyze compares. Each model is a set of counters over symbols
// and contexts; its cost is the entropy of the counts and the cost of describing them.
#include "lib/study/analysis/entropy_models.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/base/error.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/counts.h"

namespace kv::analysis {
namespace {

constexpr uint64_t kFrameTokens = 512;
// Adaptive coders begin with a count of 1/16 for every symbol.
constexpr double kPrior = 1.0 / 16;
// Limits above which channels are counted separately: 256 counters per channel must not take more
// memory than the values.
constexpr uint64_t kFewChannels = 8192, kEnoughTokens = 96;

// Total cost of an order-0 coder and its table for all counted values.
struct Price {
  double bits = 0, table_bits = 0;

  Price operator+(const Price& other) const {
    return {bits + other.bits, table_bits + other.table_bits};
  }
  Price operator-(const Price& other) const {
    return {bits - other.bits, table_bits - other.table_bits};
  }
  Price operator/(double n) const { return {bits / n, table_bits / n}; }
};

// Caps the price at the raw size: a coder would store the values instead.
Price Capped(Price price, double raw_bits) {
  price.table_bits = std::min(price.table_bits, std::max(0.0, raw_bits - price.bits));
  return price;
}

Price ComputePrice(const uint64_t* counts, size_t size) {
  double total = 0, bits = 0, symbols = 0;
  for (size_t i = 0; i < size; ++i) {
    if (counts[i] == 0) continue;
    const auto n = static_cast<double>(counts[i]);
    total += n;
    bits -= n * std::log2(n);
    ++symbols;
  }
  if (total == 0) return {};
  return {bits + total * std::log2(total), (symbols - 1) / 2 * std::log2(total)};
}
Price ComputePrice(const std::vector<uint64_t>& counts) {
  return ComputePrice(counts.data(), counts.size());
}

// Returns the counts of f(index) over all indices that occur.
template <typename F>
std::vector<uint64_t> Folded(const std::vector<uint64_t>& counts, size_t size, F f) {
  std::vector<uint64_t> folded(size);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] != 0) folded[f(static_cast<uint32_t>(i))] += counts[i];
  }
  return folded;
}

// Prices the difference to the value before. The first value of each chain is priced like the rest,
// which changes the sum too little to matter.
Price PriceDifference(const std::vector<uint64_t>& pairs, bool exclusive) {
  const auto counts = Folded(pairs, 256, [&](uint32_t i) {
    return exclusive ? (i >> 8 ^ i) & 0xff : (i - (i >> 8)) & 0xff;
  });
  const auto total =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), uint64_t{0}));
  return ComputePrice(counts) / std::max(1.0, total);
}

// Prices a high byte given sign and exponent of the one before it: f16 keeps them in its top six
// bits, above `shift` others.
Price PriceInContext(const std::vector<uint64_t>& pairs, uint32_t shift) {
  const uint32_t contexts = 256u >> shift;
  const auto counts = Folded(pairs, size_t{contexts} * 256,
                             [&](uint32_t i) { return (i >> (8 + shift)) << 8 | (i & 0xff); });
  Price price;
  for (uint32_t c = 0; c < contexts; ++c)
    price = price + ComputePrice(counts.data() + size_t{c} * 256, 256);
  return price;
}

double Log2Gamma(double x) { return std::lgamma(x) / std::log(2.0); }

// Returns the bits that an adaptive coder pays for n symbols while it learns 256 frequencies.
template <typename Count>
double AdaptiveBits(const Count* counts, const std::vector<double>& log2_rising) {
  double seen = 0, bits = 0;
  for (size_t i = 0; i < 256; ++i) {
    if (counts[i] == 0) continue;
    const auto n = static_cast<double>(counts[i]);
    seen += n;
    bits -= counts[i] < log2_rising.size() ? log2_rising[counts[i]]
                                           : Log2Gamma(n + kPrior) - Log2Gamma(kPrior);
  }
  return bits + Log2Gamma(seen + 256 * kPrior) - Log2Gamma(256 * kPrior);
}

// Returns log2 of prior * (prior + 1) * ... for up to n factors.
std::vector<double> RisingTable() {
  std::vector<double> table(kFrameTokens + 1);
  for (size_t n = 1; n < table.size(); ++n) {
    table[n] = table[n - 1] + std::log2(kPrior + static_cast<double>(n - 1));
  }
  return table;
}
const std::vector<double>& Rising() {
  static const std::vector<double> table = RisingTable();
  return table;
}

}  // namespace

EntropyModels::EntropyModels(DType dtype, uint64_t channels, uint64_t tokens)
    : bfloat_(dtype == DType::kBF16),
      mantissa_bits_(bfloat_ ? 7 : 10),
      channels_(channels),
      patterns_(65536),
      token_pairs_(65536),
      channel_pairs_(65536),
      previous_(channels),
      floats_(channels),
      previous_floats_(channels),
      first_floats_(channels),
      sums_(channels),
      squares_(channels),
      lagged_(channels),
      exponents_(channels) {
  KV_ASSERT(dtype == DType::kF16 || dtype == DType::kBF16);
  KV_ASSERT(channels > 0);
  if (channels <= kFewChannels || tokens >= kEnoughTokens) {
    frame_counts_.resize(channels * 256);
    channel_counts_.resize(channels * 256);
  }
}

void EntropyModels::Add(ByteSpan rows, uint64_t tokens) {
  KV_ASSERT(rows.size() == tokens * channels_ * 2);
  CountWords(rows.data(), rows.size() / 2, patterns_.data());
  values_ += tokens * channels_;
  std::vector<uint16_t> row(channels_);
  for (uint64_t t = 0; t < tokens; ++t) {
    std::memcpy(row.data(), rows.data() + t * channels_ * 2, channels_ * 2);
    if (tokens_ > 0) {
      for (uint64_t c = 0; c < channels_; ++c) {
        ++token_pairs_[(previous_[c] & 0xff00u) | row[c] >> 8];
      }
    }
    for (uint64_t c = 1; c < channels_; ++c) {
      ++channel_pairs_[(row[c - 1] & 0xff00u) | row[c] >> 8];
    }
    AddMoments(row.data());
    if (!frame_counts_.empty()) AddChannels(row.data());
    previous_.swap(row);
    ++tokens_;
  }
}

void EntropyModels::AddChannels(const uint16_t* row) {
  for (uint64_t c = 0; c < channels_; ++c) ++frame_counts_[c * 256 + (row[c] >> 8)];
  if (++frame_tokens_ == kFrameTokens) CloseFrame();
}

void EntropyModels::CloseFrame() {
  frame_bits_ += FrameBits();
  for (size_t i = 0; i < frame_counts_.size(); ++i) channel_counts_[i] += frame_counts_[i];
  std::fill(frame_counts_.begin(), frame_counts_.end(), uint16_t{0});
  frame_tokens_ = 0;
}

double EntropyModels::FrameBits() const {
  double bits = 0;
  for (uint64_t c = 0; c < channels_; ++c) {
    bits += AdaptiveBits(frame_counts_.data() + c * 256, Rising());
  }
  return bits;
}

double EntropyModels::WholeBits() const {
  double bits = 0;
  std::array<uint32_t, 256> counts;
  for (uint64_t c = 0; c < channels_; ++c) {
    for (size_t i = 0; i < 256; ++i) {
      counts[i] = channel_counts_[c * 256 + i] + frame_counts_[c * 256 + i];
    }
    bits += AdaptiveBits(counts.data(), Rising());
  }
  return bits;
}

void EntropyModels::AddMoments(const uint16_t* row) {
  const auto* bytes = reinterpret_cast<const std::byte*>(row);
  (bfloat_ ? BFloatToFloat : HalfToFloat)(bytes, floats_.data(), channels_);
  const uint32_t least = 1, mask = bfloat_ ? 0xff : 0x1f;
  for (uint64_t c = 0; c < channels_; ++c) {
    const double x = floats_[c];
    sums_[c] += x;
    squares_[c] += x * x;
    lagged_[c] += x * static_cast<double>(previous_floats_[c]);
    // Subnormals have the spacing of the smallest normal numbers.
    exponents_[c] += std::max(least, row[c] >> mantissa_bits_ & mask);
  }
  if (tokens_ == 0) first_floats_ = floats_;
  previous_floats_.swap(floats_);
}

// Returns the bits of a normal distribution of deviation s, sampled at spacing u: log2(s sqrt(2 pi
// e)) - log2(u).
double EntropyModels::GaussianBits() const {
  const double bias = bfloat_ ? 127 : 15, n = static_cast<double>(tokens_);
  double bits = 0;
  for (uint64_t c = 0; c < channels_; ++c) {
    const double mean = sums_[c] / n, variance = squares_[c] / n - mean * mean;
    if (!(variance > 0)) continue;
    const double spacing = exponents_[c] / n - bias - mantissa_bits_;
    bits += std::max(0.0, 0.5 * std::log2(2 * M_PI * M_E * variance) - spacing);
  }
  return bits / static_cast<double>(channels_);
}

double EntropyModels::autoregressive_gain_bits() const {
  const double n = static_cast<double>(tokens_);
  if (tokens_ < 3) return 0;
  double bits = 0;
  for (uint64_t c = 0; c < channels_; ++c) {
    const double mean = sums_[c] / n, variance = squares_[c] / n - mean * mean;
    if (!(variance > 0)) continue;
    // Sums over all values but the last, and over all but the first.
    const double before = sums_[c] - previous_floats_[c], after = sums_[c] - first_floats_[c];
    const double covariance = (lagged_[c] - mean * (before + after)) / (n - 1) + mean * mean;
    const double correlation = std::min(std::abs(covariance / variance), 0.9999);
    bits -= 0.5 * std::log2(1 - correlation * correlation);
  }
  return std::isfinite(bits) ? bits / static_cast<double>(channels_) : 0;
}

std::vector<EntropyModel> EntropyModels::Models() const {
  std::vector<EntropyModel> models;
  if (values_ == 0) return models;
  const double n = static_cast<double>(values_);
  const auto marginal = [&](size_t size, auto f) {
    return ComputePrice(Folded(patterns_, size, f)) / n;
  };
  const uint32_t m = mantissa_bits_, fold = 1u << (16 - m), low = (1u << m) - 1;
  const Price mantissa = Capped(marginal(1u << m, [&](uint32_t v) { return v & low; }), m);
  const Price sign = marginal(2, [](uint32_t v) { return v >> 15; });
  const Price exponent = marginal(fold / 2, [&](uint32_t v) { return (v & 0x7fff) >> m; });
  const Price signed_exponent = marginal(fold, [&](uint32_t v) { return v >> m; });
  const Price low_byte = Capped(marginal(256, [](uint32_t v) { return v & 0xff; }), 8);
  const Price high_byte = Capped(marginal(256, [](uint32_t v) { return v >> 8; }), 8);
  const auto rotated = [](uint32_t v) { return (v << 1 | v >> 15) & 0xffff; };
  const auto add = [&](std::string_view name, std::string_view summary, const Price& price) {
    models.push_back({name, summary, price.bits, price.table_bits});
  };
  add("fields", "sign, exponent and mantissa", sign + exponent + mantissa);
  add("byte_planes", "high and low byte", high_byte + low_byte);
  add("rotated_planes", "bytes, the sign moved to the end",
      marginal(256, [&](uint32_t v) { return rotated(v) >> 8; }) +
          marginal(256, [&](uint32_t v) { return rotated(v) & 0xff; }));
  add("sign_exponent", "sign with exponent, mantissa raw",
      signed_exponent + Price{static_cast<double>(m), 0});

  if (channels_ > 1) {
    add("channel_delta", "high byte minus that of the channel before",
        PriceDifference(channel_pairs_, false) + low_byte);
    add("channel_xor", "high byte xor that of the channel before",
        PriceDifference(channel_pairs_, true) + low_byte);
  }
  if (tokens_ > 1) {
    add("token_delta", "high byte minus that of the token before",
        PriceDifference(token_pairs_, false) + low_byte);
    add("token_xor", "high byte xor that of the token before",
        PriceDifference(token_pairs_, true) + low_byte);
  }
  if (!frame_counts_.empty()) {
    const double open = frame_tokens_ > 0 ? FrameBits() : 0;
    add("per_channel_512", "high byte by channel, frames of 512 tokens",
        Price{(frame_bits_ + open) / n, 0} + low_byte);
    add("per_channel", "high byte by channel", Price{WholeBits() / n, 0} + low_byte);
  }
  if (tokens_ > 1) {
    const Price price = PriceInContext(token_pairs_, bfloat_ ? 0 : 2) /
                        static_cast<double>((tokens_ - 1) * channels_);
    // In bf16 the last bit of the exponent is in the low byte, which is coded given the high one.
    add("previous_token", "high byte, given sign and exponent of the token before",
        price + (bfloat_ ? signed_exponent - high_byte + mantissa : low_byte));
  }
  const double gaussian = GaussianBits();
  if (std::isfinite(gaussian) && gaussian > 0) {
    // Each channel needs a mean and a deviation.
    const double t = static_cast<double>(tokens_);
    add("gaussian", "each channel a normal distribution", {gaussian, std::log2(t) / t});
  }
  return models;
}

}  // namespace kv::analysis
