// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/cdf/channel_model.h"
#include "lib/core/codec/prev/prev.h"

// Codes whole half floats under the distribution that a ChannelModel expects. These frames are the
// smallest and the slowest. FORMAT.md in this folder is the grammar.
namespace kv {

// Returns whether a grid can be coded this way. The model's state takes some 5 kB per column, so
// there must be enough rows to justify it.
bool FitsCdf(uint64_t rows, uint64_t columns);

// How many channels to the left, and how many in the same place of heads to the left, are taps. The
// time that learning takes grows with the square of their number and faster: the short reach costs
// 0.1 to 0.6 % of size and encodes in half the time of the long one.
struct Reach {
  uint64_t near = 0, heads = 0;
};
constexpr Reach kShortReach{8, 2}, kLongReach{24, 6};

// The taps worth having for a grid whose first row is `x`, given where it turns.
ChannelShape ShapeFor(const float* x, uint64_t rows, uint64_t columns, uint64_t head_dim,
                      Rotation rotation, Reach reach);
// What a frame begins with. Reading throws kTruncated, and kBadFrame also unless the values are of
// so many bytes.
void WriteShape(uint32_t largest, const ChannelShape& shape, ByteWriter& frame);
ChannelShape ReadShape(ByteReader& reader, uint64_t value_bytes, uint32_t& largest);

// Appends the frame to `out` and returns true if it is smaller than `to_beat` bytes. `head_dim` is
// the model's, or 0 if it is not known. FitsCdf must hold for the grid.
// What else is known of rows, from elsewhere.
class RowForecast {
 public:
  RowForecast(uint64_t rows, uint64_t columns) : rows(rows), columns(columns) {}
  virtual ~RowForecast() = default;
  // What is expected of the values of a row, as the model sees them. They are finite.
  virtual const float* Expect(uint64_t row) = 0;
  // What they turned out to be. Rows are expected and known in order, by turns.
  virtual void Know(uint64_t row, const float* x) = 0;

  const uint64_t rows, columns;
};

bool EncodeCdf(ByteSpan values, bool bfloat, uint64_t rows, uint64_t columns, uint64_t head_dim,
               const RowSteps& steps, uint64_t to_beat, Bytes& out, Arena* arena = nullptr,
               RowForecast* forecast = nullptr);
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeCdf(ByteSpan frame, bool bfloat, std::span<std::byte> values, const RowSteps& steps,
               Arena* arena = nullptr, RowForecast* forecast = nullptr);

}  // namespace kv
