// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "lib/core/base/arena.h"
#include "lib/core/base/bytes.h"
#include "lib/core/codec/cdf/channel_model.h"
#include "lib/core/codec/context/prev.h"
#include "lib/core/kernels/logistic.h"

// Codes whole half floats under the distribution that a ChannelModel expects. These frames are the
// smallest and the slowest. FORMAT.md in this folder is the grammar.
//
// Every row is predicted channel by channel (channel_model.h). A logistic distribution around the
// prediction divides the range of 2^30 into slots, one for each value, and rANS codes the value's
// slot. Everything that depends on floats is computed in a fixed order of single operations, so
// that every machine finds the same slots.
namespace kv {

// Returns true if a grid can be coded this way. The model's state takes some 5 kB per column, which
// at least 16 rows have to justify.
bool FitsCdf(uint64_t rows, uint64_t columns);

// Number of taps: channels directly to the left, and heads to the left, of which the same channel
// is a tap. The time of learning grows at least with the square of their number. The short reach
// encodes in half the time of the long one and costs 0.1 to 0.6 % of size (docs/lab.md, "The
// codec": 1.324 at 9 MB/s with 24 near taps, 1.322 at 20 MB/s with 8, f16 K of 384 KiB).
struct Reach {
  uint64_t near = 0, heads = 0;
};
constexpr Reach kShortReach{8, 2}, kLongReach{24, 6};

// Returns the taps that are worth their time for a grid whose first row is `x`, given its rotation.
ChannelShape ShapeFor(const float* x, uint64_t rows, uint64_t columns, uint64_t head_dim,
                      Rotation rotation, Reach reach);
// Write and read the header of a frame. Reading throws kTruncated, and kBadFrame for an impossible
// shape or one that does not describe `value_bytes` bytes.
void WriteShape(uint32_t largest, const ChannelShape& shape, ByteWriter& frame);
ChannelShape ReadShape(ByteReader& reader, uint64_t value_bytes, uint32_t& largest);

// Returns true if a channel at this distance to the left can be a tap of a frame.
constexpr bool IsFarTap(uint64_t distance, uint64_t near, uint64_t columns) {
  // Far taps are summed before the channels of the group are known, so they must lie outside it.
  return distance > near && distance >= kRegressLanes && distance < columns;
}

// Predictions of rows from outside the chunk, for example from other layers: the model takes them
// as one more tap of each column. Calls of Expect and Learn alternate, in the order of the rows.
class RowForecast {
 public:
  // A forecast that also uses the columns of the row itself predicts block by block; a `block` is a
  // multiple of kRegressLanes columns.
  RowForecast(uint64_t rows, uint64_t columns, uint64_t block)
      : rows(rows), columns(columns), block(block) {}
  virtual ~RowForecast() = default;
  // Returns the expected values of a row, scaled as the model sees them. They are finite. Only
  // those of the first block are known already.
  virtual const float* Expect(uint64_t row) = 0;
  // Computes the expected values of the block that begins at `begin` from the values of all columns
  // before it, where Expect has returned them.
  virtual void Continue(uint64_t row, uint64_t begin, const float* x) = 0;
  // Learns what the values turned out to be.
  virtual void Learn(uint64_t row, const float* x) = 0;
  // Returns what the model knows before the first row, or nullptr.
  virtual const ChannelStart* start() const { return nullptr; }

  const uint64_t rows, columns, block;
};

// Returns what a model learns from these rows beyond their forecast, with the taps of the short
// reach. The rows are many: some of them resemble earlier ones.
ChannelStart LearnStart(ByteSpan values, HalfForm form, const Rotation& rotation, uint64_t head_dim,
                        const RowSteps& steps, RowForecast& forecast);

// Appends the frame to `out` and returns true if it is smaller than `to_beat` bytes. `head_dim` is
// the model's, or 0 if it is not known. FitsCdf must hold for the grid.
bool EncodeCdf(ByteSpan values, HalfForm form, uint64_t rows, uint64_t columns, uint64_t head_dim,
               const RowSteps& steps, uint64_t to_beat, Bytes& out, Arena* arena = nullptr,
               RowForecast* forecast = nullptr);
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeCdf(ByteSpan frame, HalfForm form, std::span<std::byte> values, const RowSteps& steps,
               Arena* arena = nullptr, RowForecast* forecast = nullptr);

// Codes half floats under a logistic distribution in integers: each value gets a slot, a range of
// the 2^30 numbers that a coded state can hold.

constexpr uint32_t kSlotBits = LogisticShares::kTotalBits;
constexpr uint32_t kSlotTotal = 1u << kSlotBits;
using CodeSlot = LogisticSlot;

// Returns the value with an ordinal (`place`): values are numbered from the most negative (0) to
// the most positive.
inline uint16_t HalfAt(uint32_t place, int unit_bits) {
  return static_cast<uint16_t>(place < 0x8000 ? 0x10000u - (1u << unit_bits) - place
                                              : place - 0x8000);
}

class LogisticCode {
 public:
  // Values are multiplied by `scale`, a power of two; f16 values also by 2^112, because their bits
  // are read as those of a binary32 (see LmsLoad).
  LogisticCode(HalfForm form, float scale)
      : shares_{.below = kTable.below,
                .largest = std::bit_cast<uint32_t>(kLargest / std::max(scale, 1.0f)),
                .shift = form.bfloat ? 16 : 13,
                .unit_bits = static_cast<int>(form.byte_shift),
                .scale = scale} {
    shares_.half_step = 1u << (shares_.shift + shares_.unit_bits - 1);
  }

  // Returns the slot of the value with this ordinal. Every value has a probability of at least 2^4
  // / 2^30, so that even an infinity can be coded.
  CodeSlot FindSlot(uint32_t place, float mean, float inverse_scale) const {
    const uint32_t start = Below(place, mean, inverse_scale);
    return {start, Below(place + (1u << shares_.unit_bits), mean, inverse_scale) - start};
  }
  // Computes the slots of `count` half floats.
  void FindSlots(const uint16_t* halves, const float* means, const float* inverse_scales,
                 size_t count, CodeSlot* slots) const {
    LogisticSlots(shares_, halves, means, inverse_scales, count, slots);
  }
  // Returns the value whose slot contains `target`, and its slot.
  uint16_t Find(uint32_t target, float mean, float inverse_scale, CodeSlot& slot) const;

 private:
  static constexpr uint32_t kSteps = LogisticShares::kSteps, kSpan = LogisticShares::kSpan;
  struct Table {
    uint32_t below[2 * kSpan * kSteps + 2];
    Table();
  };
  static const Table kTable;

  uint32_t Below(uint32_t place, float mean, float inverse_scale) const {
    return LogisticBelow(shares_, place, mean, inverse_scale);
  }
  uint32_t Guess(uint32_t target, float mean, float inverse_scale) const;

  static constexpr float kLargest = std::numeric_limits<float>::max();

  LogisticShares shares_;
};

// Slots are read in the order in which they are listed, by one rANS state of 63 bits that is
// renormalised in 32-bit words (J. Duda's ANS). One state suffices: predicting takes far longer.
constexpr uint64_t kSlotStateLow = uint64_t{1} << 31;

// Returns the slot of items [before, before + size) out of `total` equally likely ones. The
// remainder of 2^30 belongs to no item: a decoder that finds it refuses the frame.
inline CodeSlot MakeShare(uint64_t before, uint64_t size, uint64_t total) {
  const uint64_t unit = kSlotTotal / total;
  return {static_cast<uint32_t>(before * unit), static_cast<uint32_t>(size * unit)};
}

// Codes the slots, and appends the final rANS state and the 32-bit words.
void WriteSlots(std::span<const CodeSlot> slots, ByteWriter& out, Arena* arena = nullptr);

// Reads slots from the rest of a frame.
class SlotReader {
 public:
  explicit SlotReader(ByteReader& reader);
  // Returns a number inside the next slot.
  uint32_t target() const { return static_cast<uint32_t>(state_ & (kSlotTotal - 1)); }
  void Take(const CodeSlot& slot) {
    state_ = (state_ >> kSlotBits) * slot.size + target() - slot.start;
    if (state_ < kSlotStateLow) Refill();
  }
  // Checks that all words were used and the state is back at its start. Throws kTrailingBytes,
  // kBadPayload.
  void CheckEnd() const;
  [[noreturn]] void Refuse(const char* what) const;

 private:
  void Refill();

  uint64_t state_ = 0, words_at_ = 0;
  ByteSpan words_;
  size_t used_ = 0;
};

}  // namespace kv
