// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/ref/near_rows.h"

// Near rows whose differences from what is expected are coded under distributions that are learned
// on the way: smaller and slower than by tables. FORMAT.md in this folder is the grammar; all else
// of such chunks is that of lib/core/codec/ref.
namespace kv {

// Gives rows factors, kEqualRow to those that are as expected; no row becomes an own row. Returns
// false, having appended nothing, if there are too few rows that differ.
bool EncodeNearDistributions(NearRows& near, uint64_t head_dim, CodecScratch& scratch,
                             ByteWriter& out);
// As DecodeNearRows.
void DecodeNearDistributions(ByteReader& reader, NearRows& near, CodecScratch& scratch);

}  // namespace kv
