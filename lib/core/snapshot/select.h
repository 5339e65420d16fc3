// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// A part of a snapshot, as the flags --layers, --tokens and --kv name it.
struct Selection {
  std::optional<std::vector<uint32_t>> layers = {};  // sorted layer indices; nothing = all
  uint64_t token_begin = 0, token_end = UINT64_MAX;
  bool keys = true, values = true;

  bool is_all() const {
    return !layers && token_begin == 0 && token_end == UINT64_MAX && keys && values;
  }
  bool HasLayer(uint32_t layer) const;
};

// Tokens [begin, begin + count) of a tensor as views into the same bytes.
KvTensor SliceTokens(const KvTensor& tensor, uint64_t begin, uint64_t count);

// Keeps the selected layers and tokens, with their cells and ids; K and V both stay. Throws kUsage
// when a layer does not exist or the token range is empty or beyond every layer.
Snapshot Select(Snapshot snapshot, const Selection& selection);

// Keeps the cells of one sequence, which then belong to no other. Token ids are dropped unless all
// cells stay, because nothing tells whose they are. Throws kUsage if no cell belongs to the
// sequence, kUnsupportedLayout if the cells of some layer are not recorded.
Snapshot SelectSequence(Snapshot snapshot, int32_t sequence);

}  // namespace kv
