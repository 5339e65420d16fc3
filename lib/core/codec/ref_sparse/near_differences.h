// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/ref/near_rows.h"

// Near rows of which few values are not as expected: a list of these. FORMAT.md in this folder is
// the grammar; all else of such chunks is that of lib/core/codec/ref.
namespace kv {

// What a list is for: fewer values than one in so many differ.
constexpr uint64_t kFewDifferences = 24;
// Below one in so many nothing takes less than a list.
constexpr uint64_t kVeryFewDifferences = 128;

// How many values are not as expected; any number above `most` if there are more.
uint64_t CountDifferences(const NearRows& near, uint64_t most);
// No row becomes an own row; factors stay.
void EncodeNearDifferences(const NearRows& near, CodecScratch& scratch, ByteWriter& out);
// As DecodeNearRows; all factors become 0.
void DecodeNearDifferences(ByteReader& reader, NearRows& near, CodecScratch& scratch);

}  // namespace kv
