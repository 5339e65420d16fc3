// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>

#include "lib/core/codec/ref/near_rows.h"
#include "lib/core/codec/ref_layers/ref_layers.h"

// Chooses how the near rows of a chunk are coded: as a list of the values that differ, by tables,
// or under distributions that are learned, with or without the differences of neighbours. Internal
// to lib/core/codec/ref.
namespace kv {

// The chunk that near rows are of.
struct NearChunk {
  const ChunkShape& shape;
  uint64_t rows;
  double own_bits;  // what a value takes without a reference
  Effort effort;
  std::span<const ReferenceRun> runs;  // all, equal ones as well
  std::span<const size_t> near_of;     // for each near run, the proposed run that it is part of
  const Rotation& rotation;            // of keys
  const ReferenceRows& references;
  const BesideNeighbours* neighbours;  // may be null
};

// Appends the near rows, rotation first, and gives them factors, kOwnRow to those that are better
// coded otherwise. Returns kRef, kRefSparse, kRefCdf or kRefLayers; `errors` belongs to the last.
CodecId EncodeNear(const NearChunk& chunk, NearRows& near, CodecScratch& scratch,
                   ErrorsHead& errors, ByteWriter& out);

}  // namespace kv
