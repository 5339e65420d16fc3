// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/base/arena.h"
#include "lib/core/base/bytes.h"

// Rotary position embedding as a codec sees it: pairs of channels that turn from row to row.
namespace kv {

// How many steps each row of a chunk stands from the first one: its position. Without any, rows are
// successive positions.
class RowSteps {
 public:
  RowSteps() = default;
  explicit RowSteps(std::span<const uint32_t> steps) : steps_(steps) {}

  bool empty() const { return steps_.empty(); }
  uint64_t size() const { return steps_.size(); }
  uint32_t operator[](uint64_t row) const {
    return steps_.empty() ? static_cast<uint32_t>(row) : steps_[row];
  }
  // From the row `distance` rows up to this one, modulo 2^32.
  uint32_t Up(uint64_t row, uint64_t distance) const {
    return (*this)[row] - (*this)[row - distance];
  }

 private:
  std::span<const uint32_t> steps_;
};
// Throws kBadFrame unless there are none, or as many as rows.
void CheckSteps(const RowSteps& steps, uint64_t rows);

struct Rotation {
  // The distance between the partners of a pair: 1 if they are channels 2i and 2i + 1, half a head
  // if they are channels i and i + distance.
  uint32_t distance = 1;
  // How far each pair of a head turns per row, in 2^-32 of a full turn; empty if nothing is known
  // to turn. If distance > 1, a head has `distance` pairs.
  std::vector<uint32_t> turns;
};

// Finds the rotation of keys by trying the usual ways to lay out pairs and to space angles.
// `values` are rows x columns half floats, multiplied by `scale` when loaded (see LmsLoad);
// `head_dim` is 0 if it is not known.
Rotation FindRotation(ByteSpan values, bool bfloat, float scale, uint64_t rows, uint64_t columns,
                      uint64_t head_dim, const RowSteps& steps, Arena* arena = nullptr);

// Throws kBadFrame, at `offset`, if a row of `columns` cannot have this distance and these turns.
void CheckRotation(uint64_t distance, uint64_t turns, uint64_t columns, uint64_t offset);
// Writes u16 distance of partners, u16 number of turns, then each turn as u32.
void WriteRotation(const Rotation& rotation, ByteWriter& out);
// Throws kTruncated, and kBadFrame if a row of `columns` cannot have this rotation.
Rotation ReadRotation(ByteReader& reader, uint64_t columns);

// Writes the value of each channel's partner, which is `distance` away; 0 for a channel without
// one.
void CopyPartners(uint32_t distance, const float* x, uint64_t columns, float* out);

// Turns rows by whole numbers of steps; a negative number counts modulo 2^32. Angles come from a
// table of 4096, and all operations are plain floats in a fixed order, because archives depend on
// every bit.
class Turner {
 public:
  Turner(const Rotation& rotation, uint64_t columns, Arena* arena = nullptr);
  // Writes the cosine and the sine of every channel after `steps` steps.
  void Angles(uint32_t steps, float* cosines, float* sines);
  // Writes `x` turned to `out`; channels that do not turn are copied.
  void Turn(uint32_t steps, const float* x, float* out);

 private:
  const Rotation& rotation_;
  uint64_t columns_;
  ArenaVector<float> cosines_, sines_, partners_, signs_;
};

}  // namespace kv
