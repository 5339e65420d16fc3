// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/core/codec/backends.h"
#include "lib/core/codec/rotation.h"

// Finds for each row the earlier row that it resembles most. Repeated tokens have similar rows; the
// similarity fades with depth and is still visible in the middle layers of a model.
namespace kv {

// Classes of similarity: predicting a row of class q from the earlier row that it resembles
// leaves less than kSimilarityLimits[q] of its variance. Rows without one have class 0. The limits
// are part of the grammar.
constexpr size_t kSimilarityClasses = 6;
constexpr std::array<float, kSimilarityClasses> kSimilarityLimits = {1,    0.003f, 0.02f,
                                                                     0.1f, 0.3f,   0.6f};
constexpr uint32_t kWeakSimilarity = 4;  // first class of weak similarity
// Maximum number of columns for which all rows are compared in full.
constexpr uint64_t kMaxComparedColumns = 1 << 14;

struct EarlierRow {
  uint32_t similarity = 0;  // the similarity class
  uint32_t distance = 0;    // number of rows up to the similar one; 0 for class 0
};

struct EarlierRowsPlan {
  // moves an earlier row to a later position for the comparison
  Rotation rotation;
  ArenaVector<EarlierRow> earlier_rows;
};

// Writes the rotation, then the u32 length of a zstd frame and the frame: one byte plane of classes
// and two of distances.
void WriteEarlierRows(const EarlierRowsPlan& plan, CodecScratch& scratch, ByteWriter& out);
// Throws kBadFrame, kBadPayload, kTruncated.
EarlierRowsPlan ReadEarlierRows(ByteReader& reader, uint64_t rows, uint64_t columns,
                                CodecScratch& scratch);

// Returns nullopt if few rows resemble earlier ones. `values` are rows x columns half floats;
// `head_dim` is 0 if it is not known.
std::optional<EarlierRowsPlan> PlanEarlierRows(ByteSpan values, bool bfloat, uint64_t rows,
                                               uint64_t columns, uint64_t head_dim,
                                               const RowSteps& steps, Arena* arena = nullptr);

// Returns one earlier row per row of `values`. Rows are compared with their rotation undone, each
// channel by its deviation from its mean. If `thorough`, all channels are compared, with every row
// within reach; otherwise the signs of some channels, with the rows of a window. The result is the
// same on every machine.
ArenaVector<EarlierRow> FindEarlierRows(ByteSpan values, bool bfloat, uint64_t rows,
                                        uint64_t columns, const Rotation& rotation,
                                        const RowSteps& steps, bool thorough,
                                        Arena* arena = nullptr);

}  // namespace kv
