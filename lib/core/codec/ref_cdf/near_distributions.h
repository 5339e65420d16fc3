// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/ref/near_rows.h"

// Near rows whose differences from what is expected are coded under distributions that are learned
// on the way: smaller and slower than by tables. FORMAT.md in this folder is the grammar; all else
// of such chunks is that of lib/core/codec/ref.
namespace kv {

// Expects errors from elsewhere: how much more the values of a near row are than what is expected
// of them. Rows are expected and known in order, by turns; those that are equal are left out.
class ErrorForecast {
 public:
  virtual ~ErrorForecast() = default;
  virtual const float* Expect(uint64_t near_row) = 0;
  virtual void Know(uint64_t near_row, const float* errors) = 0;
};

// Gives rows factors, kEqualRow to those that are as expected; no row becomes an own row. Returns
// false, having appended nothing, if there are too few rows that differ.
bool EncodeNearDistributions(NearRows& near, uint64_t head_dim, CodecScratch& scratch,
                             ByteWriter& out, ErrorForecast* forecast = nullptr);
// As DecodeNearRows.
void DecodeNearDistributions(ByteReader& reader, NearRows& near, CodecScratch& scratch,
                             ErrorForecast* forecast = nullptr);

}  // namespace kv
