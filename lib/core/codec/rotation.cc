// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Finding and applying rotations (rotation.h). FindRotation tries layouts of pairs and bases on a
// sample and takes the one whose counter-rotation makes the rows' means largest. Rotator applies a
// rotation with a table of angles that every machine computes alike.

#include "lib/core/codec/rotation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "lib/core/kernels/lms.h"

namespace kv {
namespace {

constexpr uint64_t kRows = 128;           // rows sampled; half as many for short chunks
constexpr uint64_t kFewValues = 1 << 16;  // a chunk with fewer values is short
constexpr double kBases[] = {1e4, 1e5, 5e5, 1e6, 5e6, 1e7};

// Tables of cosine and sine for 4096 angles, interpolated linearly. They are computed without the C
// library's functions, whose last bits differ between machines.
class Circle {
 public:
  Circle() {
    constexpr double kCos = 0.99999882345170190, kSin = 0.0015339801862847657;  // for one step
    double c = 1, s = 0;
    for (uint32_t i = 0; i <= kAngles; ++i) {
      cosine_[i] = static_cast<float>(c);
      sine_[i] = static_cast<float>(s);
      const double next = c * kCos - s * kSin;
      s = c * kSin + s * kCos;
      c = next;
    }
  }
  // `angle` is in units of 2^-32 full circles.
  void At(uint32_t angle, float& cosine, float& sine) const {
    const uint32_t i = angle >> kBelow;
    const float part = static_cast<float>(angle & ((1u << kBelow) - 1)) * (1.0f / (1u << kBelow));
    cosine = cosine_[i] + (cosine_[i + 1] - cosine_[i]) * part;
    sine = sine_[i] + (sine_[i + 1] - sine_[i]) * part;
  }

 private:
  static constexpr uint32_t kBelow = 20, kAngles = 1u << (32 - kBelow);
  std::array<float, kAngles + 1> cosine_, sine_;
};
const Circle kCircle;

// Pairs of channels, eight side by side, so that compilers vectorise the loops over them.
constexpr uint64_t kTogether = 8;
struct Pairs {
  uint64_t rows = 0;
  ArenaVector<uint64_t> pair_of_head;
  ArenaVector<float> first, second;  // [pairs / 8][row][8]; padded with 0
};
Pairs Gather(const ArenaVector<float>& x, uint64_t rows, uint64_t columns, uint64_t head_dim,
             uint64_t distance, uint64_t step) {
  const ArenaAllocator<float> arena = x.get_allocator();
  const uint64_t in_head = head_dim / 2, count = (columns / 2 + step - 1) / step;
  const uint64_t blocks = (count + kTogether - 1) / kTogether;
  const uint64_t values = blocks * rows * kTogether;
  Pairs pairs{rows, ArenaVector<uint64_t>(arena), ArenaVector<float>(values, arena),
              ArenaVector<float>(values, arena)};
  pairs.pair_of_head.reserve(count);
  for (uint64_t n = 0; n < count; ++n) {
    const uint64_t pair = n * step % in_head, head = n * step / in_head * head_dim;
    const uint64_t channel = head + (distance == 1 ? 2 * pair : pair);
    pairs.pair_of_head.push_back(pair);
    for (uint64_t row = 0; row < rows; ++row) {
      const uint64_t at = (n / kTogether * rows + row) * kTogether + n % kTogether;
      pairs.first[at] = x[row * columns + channel];
      pairs.second[at] = x[row * columns + channel + distance];
    }
  }
  return pairs;
}

// Returns the bits saved, given the sums in the rotating frame and the power of each pair.
double BitsSaved(const float* sum_a, const float* sum_b, const float* power, uint64_t count,
                 uint64_t rows) {
  double bits = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const float mean = (sum_a[i] * sum_a[i] + sum_b[i] * sum_b[i]) / static_cast<float>(rows);
    bits -= 0.5 * std::log2(std::max(1 - static_cast<double>(mean / power[i]), 1e-6));
  }
  return bits;
}

// Returns the bits per value that are saved by knowing the pairs' means in a frame that rotates
// with them. `angles` are those of the pairs of one head, per row. If the angles are right, the
// rotation of the keys cancels and the means are large.
double BitsSaved(const Pairs& pairs, const ArenaVector<double>& angles) {
  double bits = 0;
  const uint64_t count = pairs.pair_of_head.size();
  for (uint64_t begin = 0; begin < count; begin += kTogether) {
    float step_cos[kTogether] = {}, step_sin[kTogether] = {}, c[kTogether], s[kTogether] = {};
    float sum_a[kTogether] = {}, sum_b[kTogether] = {}, power[kTogether];
    const uint64_t here = std::min(kTogether, count - begin);
    for (uint64_t i = 0; i < kTogether; ++i) c[i] = 1, power[i] = 1e-12f;
    for (uint64_t i = 0; i < here; ++i) {
      const double angle = angles[pairs.pair_of_head[begin + i]];
      step_cos[i] = static_cast<float>(std::cos(angle));
      step_sin[i] = static_cast<float>(std::sin(angle));
    }
    const float *a = pairs.first.data() + begin * pairs.rows,
                *b = pairs.second.data() + begin * pairs.rows;
    for (uint64_t row = 0; row < pairs.rows; ++row, a += kTogether, b += kTogether) {
      for (uint64_t i = 0; i < kTogether; ++i) {
        sum_a[i] += a[i] * c[i] + b[i] * s[i];
        sum_b[i] += b[i] * c[i] - a[i] * s[i];
        power[i] += a[i] * a[i] + b[i] * b[i];
        const float next = c[i] * step_cos[i] - s[i] * step_sin[i];
        s[i] = c[i] * step_sin[i] + s[i] * step_cos[i];
        c[i] = next;
      }
    }
    bits += BitsSaved(sum_a, sum_b, power, here, pairs.rows);
  }
  return bits / static_cast<double>(count);
}

// Returns what BitsSaved does, for rows whose positions are not consecutive.
double BitsSavedAt(const Pairs& pairs, const ArenaVector<double>& angles, const RowSteps& steps) {
  double bits = 0;
  const uint64_t count = pairs.pair_of_head.size(), in_head = angles.size();
  ArenaVector<float> cosines(pairs.rows * in_head, angles.get_allocator()),
      sines(pairs.rows * in_head, angles.get_allocator());
  for (uint64_t row = 0; row < pairs.rows; ++row) {
    const auto step = static_cast<double>(static_cast<int32_t>(steps[row]));
    for (uint64_t pair = 0; pair < in_head; ++pair) {
      cosines[row * in_head + pair] = static_cast<float>(std::cos(angles[pair] * step));
      sines[row * in_head + pair] = static_cast<float>(std::sin(angles[pair] * step));
    }
  }
  for (uint64_t n = 0; n < count; ++n) {
    float sum_a = 0, sum_b = 0, power = 1e-12f;
    for (uint64_t row = 0; row < pairs.rows; ++row) {
      const uint64_t at = (n / kTogether * pairs.rows + row) * kTogether + n % kTogether;
      const uint64_t entry = row * in_head + pairs.pair_of_head[n];
      const float a = pairs.first[at], b = pairs.second[at], c = cosines[entry], s = sines[entry];
      sum_a += a * c + b * s;
      sum_b += b * c - a * s;
      power += a * a + b * b;
    }
    bits += BitsSaved(&sum_a, &sum_b, &power, 1, pairs.rows);
  }
  return bits / static_cast<double>(count);
}

double ComputeAngle(double base, uint64_t pair, uint64_t head_dim) {
  return std::pow(base, -2 * static_cast<double>(pair) / static_cast<double>(head_dim));
}

// Returns the angles of a head, spaced by `base`, in units of 2^-32 full circles.
std::vector<uint32_t> ComputeAngles(double base, uint64_t head_dim) {
  std::vector<uint32_t> angles;
  for (uint64_t pair = 0; pair < head_dim / 2; ++pair) {
    const double angle = ComputeAngle(base, pair, head_dim) / (2 * std::numbers::pi);
    angles.push_back(static_cast<uint32_t>(std::lround(angle * 4294967296.0)));
  }
  return angles;
}

// Returns the head dims to try: the model's, or else the usual ones that divide a row. Half of a
// head dim must fit the 16-bit fields of a stored rotation.
std::vector<uint64_t> HeadDims(uint64_t columns, uint64_t head_dim) {
  std::vector<uint64_t> dims;
  for (const uint64_t dim : {8, 16, 32, 36, 48, 64, 72, 80, 96, 112, 128, 192, 256}) {
    if (columns % dim == 0 && (head_dim == 0 || dim == head_dim)) dims.push_back(dim);
  }
  if (dims.empty() && head_dim >= 4 && head_dim / 2 <= UINT16_MAX && head_dim % 2 == 0 &&
      columns % head_dim == 0) {
    dims.push_back(head_dim);
  }
  return dims;
}

// The first run of consecutive positions that is long enough to sample, or else the longest one.
struct RowRun {
  uint64_t begin = 0, count = 0;
};
RowRun SuccessiveRows(const RowSteps& steps, uint64_t rows) {
  if (steps.empty()) return {0, rows};
  RowRun longest;
  for (uint64_t begin = 0; begin < rows && longest.count < kRows;) {
    uint64_t end = begin + 1;
    while (end < rows && steps.Up(end, 1) == 1) ++end;
    if (end - begin > longest.count) longest = {begin, end - begin};
    begin = end;
  }
  return longest;
}

}  // namespace

Rotation FindRotation(ByteSpan values, bool bfloat, float scale, uint64_t rows, uint64_t columns,
                      uint64_t head_dim, const RowSteps& steps, Arena* arena) {
  Rotation best;
  if (rows < 16) return best;
  const RowRun run = SuccessiveRows(steps, rows);
  const bool successive = run.count >= std::min(rows, kRows / 2);
  if (successive) {
    values = values.subspan(2 * run.begin * columns);
    rows = run.count;
  }
  const Arena::Scope temporaries(arena);
  const std::vector<uint64_t> dims = HeadDims(columns, head_dim);
  if (dims.empty()) return best;
  const uint64_t looked = std::min(rows, rows * columns < kFewValues ? kRows / 2 : kRows);
  ArenaVector<float> x(looked * columns, arena);
  for (uint64_t row = 0; row < looked; ++row) {
    LmsLoad(values.data() + 2 * row * columns, columns, bfloat, scale, x.data() + row * columns,
            columns);
  }
  // Long rows are sampled; the odd step varies the position within a head.
  const uint64_t looked_pairs = std::clamp<uint64_t>(rows * columns / 8192, 16, 128);
  const uint64_t step = std::max<uint64_t>(1, columns / 2 / looked_pairs) | 1;
  double most = 0;
  for (const uint64_t dim : dims) {
    const uint64_t in_head = dim / 2;
    for (const uint64_t distance : {uint64_t{1}, in_head}) {
      const Pairs pairs = Gather(x, looked, columns, dim, distance, step);
      ArenaVector<double> angles(in_head, arena);
      const auto saved = [&] {
        return successive ? BitsSaved(pairs, angles) : BitsSavedAt(pairs, angles, steps);
      };
      const double still = saved();
      for (const double base : kBases) {
        // A rotation costs its table and two taps that have to be learnt, hence a least gain of
        // 0.02 bits per value.
        for (uint64_t pair = 0; pair < in_head; ++pair)
          angles[pair] = ComputeAngle(base, pair, dim);
        const double gain = saved() - still;
        if (!(gain > most + 0.02)) continue;  // skips NaN sums, too
        most = gain;
        best = {static_cast<uint32_t>(distance), ComputeAngles(base, dim)};
      }
    }
  }
  return best;
}

void CheckSteps(const RowSteps& steps, uint64_t rows) {
  if (steps.empty() || steps.size() == rows) return;
  throw Error(Finding::kBadFrame, "the frame has {} rows, the chunk {} positions", rows,
              steps.size());
}

void WriteRotation(const Rotation& rotation, ByteWriter& out) {
  out.U16(static_cast<uint16_t>(rotation.distance));
  out.U16(static_cast<uint16_t>(rotation.angles.size()));
  for (const uint32_t angle : rotation.angles) out.U32(angle);
}

bool FitsRotation(uint64_t distance, uint64_t angles, uint64_t columns) {
  return distance > 0 && distance <= columns && angles <= columns &&
         (distance == 1 || angles == 0 || angles == distance);
}

void CheckRotation(uint64_t distance, uint64_t angles, uint64_t columns, uint64_t offset) {
  if (!FitsRotation(distance, angles, columns)) {
    throw Error(Finding::kBadFrame, "{} angles do not fit partners that are {} channels apart",
                angles, distance)
        .At(offset);
  }
}

Rotation ReadRotation(ByteReader& reader, uint64_t columns) {
  Rotation rotation;
  const uint64_t at = reader.offset();
  rotation.distance = reader.U16("distance of partners");
  const uint32_t angles = reader.U16("number of angles");
  CheckRotation(rotation.distance, angles, columns, at);
  for (uint32_t i = 0; i < angles; ++i) rotation.angles.push_back(reader.U32("angle"));
  return rotation;
}

// Swaps the two channels of each pair; an incomplete last block has no partners.
void CopyPartners(uint32_t distance, const float* x, uint64_t columns, float* out) {
  uint64_t block = 0;
  if (distance == 1) {
    for (; block + 2 <= columns; block += 2) {
      out[block] = x[block + 1];
      out[block + 1] = x[block];
    }
  } else {
    for (; block + 2 * distance <= columns; block += 2 * distance) {
      std::copy_n(x + block, distance, out + block + distance);
      std::copy_n(x + block + distance, distance, out + block);
    }
  }
  std::fill(out + block, out + columns, 0.0f);
}

Rotator::Rotator(const Rotation& rotation, uint64_t columns, Arena* arena)
    : rotation_(rotation),
      columns_(columns),
      cosines_(columns, arena),
      sines_(columns, arena),
      partners_(columns, arena),
      signs_(columns, arena) {
  for (uint64_t c = 0; c < columns; ++c)
    signs_[c] = c / std::max(rotation.distance, 1u) % 2 == 0 ? -1.0f : 1.0f;
}

void Rotator::Angles(uint32_t steps, float* cosines, float* sines) {
  // Computes the pairs of the first head and copies them to the others.
  const uint64_t pairs = rotation_.angles.size(), head = 2 * pairs;
  const bool neighbours = rotation_.distance == 1;
  for (uint64_t pair = 0; pair < pairs; ++pair) {
    const uint64_t first = neighbours ? 2 * pair : pair, second = first + rotation_.distance;
    float cosine, sine;
    kCircle.At(rotation_.angles[pair] * steps, cosine, sine);
    for (const uint64_t channel : {first, second}) {
      if (channel >= columns_) continue;
      cosines[channel] = cosine;
      sines[channel] = sine;
    }
  }
  for (uint64_t c = head; c < columns_; c += head) {
    const uint64_t more = std::min(head, columns_ - c);
    std::copy_n(cosines, more, cosines + c);
    std::copy_n(sines, more, sines + c);
  }
}

void Rotator::Rotate(uint32_t steps, const float* x, float* out) {
  if (rotation_.angles.empty()) {
    std::copy_n(x, columns_, out);
    return;
  }
  Angles(steps, cosines_.data(), sines_.data());
  CopyPartners(rotation_.distance, x, columns_, partners_.data());
  for (uint64_t c = 0; c < columns_; ++c)
    out[c] = x[c] * cosines_[c] + partners_[c] * (sines_[c] * signs_[c]);
}

}  // namespace kv
