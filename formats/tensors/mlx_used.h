// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "formats/tensors/mlx_state.h"

namespace kv::mlx {

// Which tokens of a buffer are in use, in the order of their positions.
struct Used {
  struct Run {
    uint64_t begin, end;
  };
  std::vector<Run> runs;
  uint64_t tokens = 0;
  uint64_t kept = 0;    // of them from the beginning of the text
  uint64_t offset = 0;  // position behind the last one

  int64_t PositionOf(uint64_t i) const {
    return static_cast<int64_t>(i < kept ? i : offset - tokens + i);
  }
};

// Of a layer whose buffer has room for so many tokens; `in_arrays` tells the order of its numbers,
// which has changed. `row` chooses a sequence of a class for batches; without it the padding
// before those that are shorter counts as used, so that all have one length. Throws kBadField,
// kUnsupportedKind where the file does not tell.
Used UsedOf(const LayerState& layer, uint64_t room, bool in_arrays, std::optional<uint64_t> row);

}  // namespace kv::mlx
