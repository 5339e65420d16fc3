// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/core/weights/weights.h"

namespace kv {

// Finds the compressor among the named tensors of a checkpoint, whatever holds them: the trainer's
// nested dicts, the usual wrappers, a DataParallel "module.", a flat state dict.

struct CheckpointOptions {
  std::vector<std::string> prefix_order;  // empty: those found, in the loaders' order
  std::vector<uint32_t> slot_order;       // empty: the three found, ascending
  uint32_t compression_factor = 0;        // 0: cols / head_dim of the first weight
  std::optional<uint32_t> min_seq_len;    // 2
  uint32_t num_heads = 0;
  uint32_t head_dim = 0;  // 0: rows of the first weight
  bool text_only = false;
};

// Comma-separated lists as the original converter takes them: blanks around an item are no part of
// it, empty items are none. A DataParallel "module." before a prefix says where the weights are and
// is dropped. Throws kUsage for a slot that is no whole number.
std::vector<std::string> ParsePrefixOrder(std::string_view list);
std::vector<uint32_t> ParseSlotOrder(std::string_view list);

// What the checkpoint holds besides the weights that were taken.
struct CheckpointShares {
  uint64_t weight_bytes = 0, optimizer_bytes = 0, other_bytes = 0;
  uint64_t ignored_keys = 0;           // beside the weights, in the same dict
  std::vector<std::string> ignored;    // the first few of them
  std::vector<std::string> untrained;  // prefixes for which the optimizer kept no state
};

// Names in `prefix_order` may have what ParsePrefixOrder would have dropped.
// Throws kMissingRecord (also without any compressor), kAmbiguousFormat, kInconsistent,
// kForbiddenGlobal (an object of an unknown class among the weights).
CompressorWeights WeightsOf(TensorFile file, const CheckpointOptions& options,
                            CheckpointShares* shares = nullptr);

// Weights that were read from a .bin with what the options ask for applied: fewer MLPs or another
// order, other header numbers. Throws kMissingRecord.
CompressorWeights Adjusted(CompressorWeights weights, const CheckpointOptions& options);

// Key of a block in a checkpoint, without ".weight" or ".bias": "compress_tk.0.3".
std::string BlockKey(const CompressorWeights& weights, uint32_t layer, uint32_t index);

}  // namespace kv
