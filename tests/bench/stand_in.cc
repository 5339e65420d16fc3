// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "tests/bench/stand_in.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lib/core/kernels/convert.h"

namespace kv::bench {
namespace {

// splitmix64
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // The sum of twelve uniform numbers has variance 1 and, unlike log and cos, is exact everywhere.
  double Gaussian() {
    uint64_t sum = 0;
    for (int i = 0; i < 6; ++i) {
      const uint64_t two = Next();
      sum += (two >> 32) + (two & 0xffffffffu);
    }
    return static_cast<double>(sum) * 0x1p-32 - 6;
  }

 private:
  uint64_t state_;
};

struct Rotation {
  double cosine, sine;
  Rotation Times(const Rotation& o) const {
    return {cosine * o.cosine - sine * o.sine, sine * o.cosine + cosine * o.sine};
  }
};

// Returns cos and sin of an angle of at most 1, by their series.
Rotation Rotate(double angle) {
  double cosine = 0, sine = 0, term = 1;
  for (int n = 0; n < 24; n += 2) {
    cosine += term;
    term *= angle / (n + 1);
    sine += term;
    term *= -angle / (n + 2);
  }
  return {cosine, sine};
}

// 10000^(-2i / dim) radians per token for the pair (i, i + dim / 2), as in Llama.
class Rope {
 public:
  explicit Rope(uint32_t head_dim) {
    // 10000^(1/64) by six square roots, which IEEE rounds correctly.
    double root = 10000;
    for (int i = 0; i < 6; ++i) root = __builtin_sqrt(root);
    double angle = 1;
    const uint32_t pairs = head_dim / 2, step = std::max(64 / pairs, 1u);
    for (uint32_t i = 0; i < pairs; ++i) {
      steps_.push_back(Rotate(angle));
      at_.push_back({1, 0});
      for (uint32_t j = 0; j < step; ++j) angle /= root;
    }
  }
  void NextToken() {
    for (size_t i = 0; i < at_.size(); ++i) at_[i] = at_[i].Times(steps_[i]);
  }
  void Apply(float* head) const {
    for (size_t i = 0; i < at_.size(); ++i) {
      const double x = head[i], y = head[i + at_.size()];
      head[i] = static_cast<float>(x * at_[i].cosine - y * at_[i].sine);
      head[i + at_.size()] = static_cast<float>(x * at_[i].sine + y * at_[i].cosine);
    }
  }

 private:
  std::vector<Rotation> steps_, at_;
};

struct Channel {
  double offset, scale, state;
};

}  // namespace

std::vector<float> StandInK(const StandInShape& shape, uint64_t seed) {
  constexpr double kMemory = 0.8, kNews = 0.6;  // the squares sum to 1
  Random random(seed);
  std::vector<Channel> channels(uint64_t{shape.heads} * shape.head_dim);
  for (Channel& channel : channels) {
    const bool outlier = random.Uniform() < 0.03;
    channel.scale = (0.3 + 1.2 * random.Uniform()) * (outlier ? 2 : 1);
    channel.offset = random.Gaussian() * (outlier ? 8 : 1);
    channel.state = random.Gaussian();
  }
  Rope rope(shape.head_dim);
  std::vector<float> values(shape.values());
  float* row = values.data();
  for (uint64_t token = 0; token < shape.tokens; ++token, row += channels.size()) {
    for (size_t c = 0; c < channels.size(); ++c) {
      Channel& channel = channels[c];
      channel.state = kMemory * channel.state + kNews * random.Gaussian();
      row[c] = static_cast<float>(channel.offset + channel.scale * channel.state);
    }
    for (uint32_t head = 0; head < shape.heads; ++head) rope.Apply(row + head * shape.head_dim);
    rope.NextToken();
  }
  return values;
}

std::vector<float> StandInV(const StandInShape& shape, uint64_t seed) {
  Random random(seed);
  std::vector<double> scales(uint64_t{shape.heads} * shape.head_dim);
  for (double& scale : scales) scale = 0.2 + 0.6 * random.Uniform();
  std::vector<float> values(shape.values());
  float* row = values.data();
  for (uint64_t token = 0; token < shape.tokens; ++token, row += scales.size()) {
    const double token_scale = 0.6 + 0.8 * random.Uniform();
    for (size_t c = 0; c < scales.size(); ++c)
      row[c] = static_cast<float>(random.Gaussian() * scales[c] * token_scale);
  }
  return values;
}

std::vector<float> StandInRepeatingV(const StandInShape& shape, uint64_t seed,
                                     uint32_t vocabulary) {
  const StandInShape words{vocabulary, shape.heads, shape.head_dim};
  const std::vector<float> rows = StandInV(words, seed);
  const size_t row = uint64_t{shape.heads} * shape.head_dim;
  Random random(seed + 1);
  std::vector<float> values;
  values.reserve(shape.values());
  for (uint64_t token = 0; token < shape.tokens; ++token) {
    // Low ids are common, like frequent words in text.
    const double u = random.Uniform();
    const auto id = static_cast<size_t>(u * u * vocabulary);
    const float* from = rows.data() + id * row;
    values.insert(values.end(), from, from + row);
  }
  return values;
}

Bytes Store(std::span<const float> values, DType dtype) {
  Bytes bytes(values.size() * Info(dtype).block_bytes);
  if (dtype == DType::kF32) std::memcpy(bytes.data(), values.data(), bytes.size());
  if (dtype == DType::kF16) FloatToHalf(values.data(), bytes.data(), values.size());
  if (dtype == DType::kBF16) FloatToBFloat(values.data(), bytes.data(), values.size());
  return bytes;
}

}  // namespace kv::bench
