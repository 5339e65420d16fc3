// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/base/arena.h"
#include "lib/core/base/bytes.h"

// Rotary position embedding as codecs see it: pairs of channels that rotate by a fixed angle per
// position.
namespace kv {

// The positions of a chunk's rows, relative to the first. Empty if the positions are consecutive.
class RowSteps {
 public:
  RowSteps() = default;
  explicit RowSteps(std::span<const uint32_t> steps) : steps_(steps) {}

  bool empty() const { return steps_.empty(); }
  uint64_t size() const { return steps_.size(); }
  uint32_t operator[](uint64_t row) const {
    return steps_.empty() ? static_cast<uint32_t>(row) : steps_[row];
  }
  // Returns the steps from the row `distance` rows up to this one, modulo 2^32.
  uint32_t Up(uint64_t row, uint64_t distance) const {
    return (*this)[row] - (*this)[row - distance];
  }

 private:
  std::span<const uint32_t> steps_;
};
// Throws kBadFrame unless `steps` is empty or has one entry per row.
void CheckSteps(const RowSteps& steps, uint64_t rows);

struct Rotation {
  // Distance between the partners of a pair: 1 if they are channels 2i and 2i + 1, half a head if
  // they are channels i and i + distance.
  uint32_t distance = 1;
  // Angle by which each pair of a head rotates per row, in units of 2^-32 circles; empty if no
  // rotation is known. If distance > 1, a head has `distance` pairs.
  std::vector<uint32_t> angles;
};

// Finds the rotation of keys by trying the usual layouts of pairs and the usual bases. `values` are
// rows x columns half floats, multiplied by `scale` when loaded (see LmsLoad); `head_dim` is 0 if
// it is not known.
Rotation FindRotation(ByteSpan values, bool bfloat, float scale, uint64_t rows, uint64_t columns,
                      uint64_t head_dim, const RowSteps& steps, Arena* arena = nullptr);

// Returns true if a row of `columns` can have this distance and number of angles.
bool FitsRotation(uint64_t distance, uint64_t angles, uint64_t columns);
// Throws kBadFrame at `offset` unless they fit.
void CheckRotation(uint64_t distance, uint64_t angles, uint64_t columns, uint64_t offset);
// Writes u16 distance of partners, u16 number of angles, then each angle as u32.
void WriteRotation(const Rotation& rotation, ByteWriter& out);
// Throws kTruncated, and kBadFrame if a row of `columns` cannot have this rotation.
Rotation ReadRotation(ByteReader& reader, uint64_t columns);

// Writes to `out` the value of each channel's partner, which is `distance` away; 0 for a channel
// without a partner.
void CopyPartners(uint32_t distance, const float* x, uint64_t columns, float* out);

// Rotates rows by whole numbers of steps; negative numbers count modulo 2^32. Angles come from a
// table of 4096, and all operations are plain floats in a fixed order, because archives depend on
// every bit.
class Rotator {
 public:
  Rotator(const Rotation& rotation, uint64_t columns, Arena* arena = nullptr);
  // Writes the cosine and the sine of every channel after `steps` steps.
  void Angles(uint32_t steps, float* cosines, float* sines);
  // Writes the rotated `x` to `out`; channels without a rotation are copied.
  void Rotate(uint32_t steps, const float* x, float* out);

 private:
  const Rotation& rotation_;
  uint64_t columns_;
  ArenaVector<float> cosines_, sines_, partners_, signs_;
};

}  // namespace kv
