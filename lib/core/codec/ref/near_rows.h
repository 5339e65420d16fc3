// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by near_rows.cc, near_encode.cc, near_decode.cc

#include <optional>

#include "lib/core/codec/ref/ref.h"
#include "lib/core/kernels/residual.h"

// Rows of 16-bit floats coded by their distance to rows that are expected. Internal to
// lib/core/codec/ref and ref-cdf.
namespace kv {

// One byte per row: the half octaves by which its errors differ from those of others, plus
// kFactorOfUsual, or one of the last two.
constexpr uint8_t kFactorOfUsual = 32, kMostFactor = 61, kEqualRow = 62, kOwnRow = 63;

// What rows of a reference are expected to be here: of the chunk's type, turned to their place.
class ExpectedRows {
 public:
  ExpectedRows(bool bfloat, uint64_t columns, const Rotation& rotation);
  // `from` holds whole rows of any type.
  void Make(DType dtype, ByteSpan from, int32_t turn, uint16_t* expected);

 private:
  bool bfloat_;
  uint64_t columns_;
  const Rotation& rotation_;
  Turner turner_;
  std::vector<float> x_, cosines_, sines_, partners_;
};

// All near rows of a chunk, one after another.
struct NearRows {
  bool bfloat = false;
  uint64_t columns = 0;
  ArenaVector<uint16_t> expected, values;
  ArenaVector<uint8_t> factors;  // one per row

  explicit NearRows(Arena* arena) : expected(arena), values(arena), factors(arena) {}

  uint64_t rows() const { return factors.size(); }
};

// Gives rows factors: kOwnRow those that are better coded otherwise, at `own_bits` a value,
// kEqualRow those that are as expected. Then appends all that tells `values` from `expected`, but
// for own rows.
void EncodeNearRows(NearRows& near, double own_bits, CodecScratch& scratch, ByteWriter& out);
// Reads that into `values` and `factors`, which have their final sizes; values of own rows stay.
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeNearRows(ByteReader& reader, NearRows& near, CodecScratch& scratch);

// What both directions share: residuals are coded by the classes of what is expected, in this
// order.
std::vector<uint16_t> ResidualClassOrder();
uint64_t CodedRows(const NearRows& near);  // neither equal nor own
// The classes of all coded rows, one after another.
void ClassesOf(const NearRows& near, const std::vector<int16_t>& scales, uint8_t* classes);

// What this has in common with other ways to code near rows.
void WriteFactors(const ArenaVector<uint8_t>& factors, CodecScratch& scratch, ByteWriter& out);
void ReadFactors(ByteReader& reader, NearRows& near, CodecScratch& scratch);
void CopyEqualRows(NearRows& near);

}  // namespace kv
