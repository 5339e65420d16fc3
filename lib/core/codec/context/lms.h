// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lib/core/codec/context/earlier_rows.h"
#include "lib/core/codec/context/prev.h"
#include "lib/core/kernels/lms.h"

// The predictor of lms frames: it predicts all channels of a row from the rows above and, if the
// encoder found one, from an earlier row that this one resembles.
//
// Least mean squares: each channel has five weights that move a small step against the error after
// every row. Encoder and decoder run the same float operations, so that no weights are stored.
namespace kv {

constexpr uint32_t kMaxLmsExponent = 253;  // the largest for which the scale is a normal float
// Returns 2^(127 - exponent), which brings the largest values to between 1 and 2. For f16 LmsLoad
// expects a factor of 2^112 more, 2^15 of which are the bias of f16.
float LmsScale(uint32_t largest_exponent);
// Returns the largest finite exponent field, limited to 1 to kMaxLmsExponent; scales of other
// exponents would leave the range of normal floats.
uint32_t LmsLargestExponent(ByteSpan values, bool bfloat);

class LmsModel {
 public:
  // `rotation` moves earlier rows to the position of the row that resembles them; nullptr for lms
  // frames, which use no similar rows. The rotation and the steps must outlive the model.
  LmsModel(uint64_t rows, uint64_t columns, uint32_t pairing, uint32_t largest_exponent,
           bool bfloat, const Rotation* rotation, const RowSteps& steps, Arena* arena = nullptr);

  const uint16_t* contexts() const { return contexts_.data(); }
  const uint8_t* signs() const { return signs_.data(); }

  // Predicts the next row. The first row is predicted as 0 and has its own context.
  void Predict(const EarlierRow& like);
  // Learns from the actual values of the row.
  void Learn(const std::byte* values);

 private:
  // State that is learnt from rows of one kind: without a similar row, with a weakly and with a
  // strongly similar one.
  struct Learned {
    ArenaVector<float> weights[5], sigma;
    uint64_t rows = 0;
  };
  LmsChannels Channels();
  // Rows are stored at place row + kRing, so that the two rows above the first exist. All rows are
  // kept if later rows may refer to them; otherwise a ring of the last kRing.
  float* X(uint64_t place) {
    return x_.data() + (with_earlier_rows_ ? place : place % kRing) * padded_;
  }
  float* Partners(uint64_t place) { return partners_.data() + place % kRing * padded_; }

  static constexpr uint64_t kRing = 3;
  uint64_t columns_, padded_;
  uint32_t pairing_;
  bool bfloat_;
  float scale_;
  Rotator rotator_;
  RowSteps steps_;
  bool with_earlier_rows_;
  ArenaVector<float> x_, partners_, mean_, prediction_, like_, zeros_;
  std::array<Learned, 3> learned_;
  size_t which_ = 0;  // index into learned_ of the current row's weights
  ArenaVector<uint16_t> contexts_;
  ArenaVector<uint8_t> signs_;
  uint64_t row_ = 0;
};

// Encodes half floats in the context of a prediction that each channel learns as it goes. This
// suits keys better than prev frames do, and is slower. FORMAT.md in this folder is the grammar.

// Appends the frame to `out` and returns true if it is smaller than `to_beat` bytes. `head_dim` is
// the model's, or 0 if it is not known. There must be more than one row and at least 16 columns. If
// `like` is given, rows are also predicted from the earlier rows that it names; the frame stores it
// and its codec is kLike instead of kLms. `steps` are the positions of the rows.
bool EncodeLms(ByteSpan values, const HalfSurvey& survey, uint64_t rows, uint64_t columns,
               uint64_t head_dim, const EarlierRowsPlan* like, uint64_t to_beat,
               CodecScratch& scratch, Bytes& out, const RowSteps& steps = {});
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeLms(ByteSpan frame, HalfForm form, bool with_earlier_rows, std::span<std::byte> values,
               CodecScratch& scratch, const RowSteps& steps = {});

}  // namespace kv
