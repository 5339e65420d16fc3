// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/core/weights/weights.h"

namespace kv {

// Finds the compressor among the named tensors of a checkpoint: in the trainer's nested dicts,
// common wrappers, a DataParallel "module.", or a flat state dict.

struct CheckpointOptions {
  std::vector<std::string> prefix_order;  // empty: the MLPs of the file, in the loaders' order
  std::vector<uint32_t> slot_order;       // empty: the three slots of the file, ascending
  uint32_t compression_factor = 0;        // 0: cols / head_dim of the first weight
  std::optional<uint32_t> min_seq_len;    // 2
  uint32_t num_heads = 0;
  uint32_t head_dim = 0;  // 0: rows of the first weight
  bool text_only = false;
};

// Parse comma-separated lists as InfiniLM's converter does: blanks around items and empty items are
// dropped. A DataParallel "module." before a prefix tells where the weights are and is dropped.
// Throw kUsage for a slot that is not a whole number.
std::vector<std::string> ParsePrefixOrder(std::string_view list);
std::vector<uint32_t> ParseSlotOrder(std::string_view list);

// The other contents of the checkpoint.
struct CheckpointShares {
  uint64_t weight_bytes = 0, optimizer_bytes = 0, other_bytes = 0;
  uint64_t ignored_keys = 0;           // in the same dict as the weights
  std::vector<std::string> ignored;    // the first few unused keys
  std::vector<std::string> untrained;  // prefixes without optimizer state
};

// Returns true if a tensor has a name that training gives to an MLP of a compressor.
bool NamesCompressor(const TensorFile& file);

// Extracts the weights. Names in `prefix_order` need not have gone through ParsePrefixOrder. Throws
// kMissingRecord (also if there is no compressor), kAmbiguousFormat, kInconsistent,
// kForbiddenGlobal (an object of an unknown class among the weights).
CompressorWeights MakeWeights(TensorFile file, const CheckpointOptions& options,
                              CheckpointShares* shares = nullptr);

// Applies the options to weights read from a .bin: fewer MLPs, another order, or other header
// numbers. Throws kMissingRecord.
CompressorWeights Adjusted(CompressorWeights weights, const CheckpointOptions& options);

// Returns the key of a block in a checkpoint, without ".weight" or ".bias": "compress_tk.0.3".
std::string BlockKey(const CompressorWeights& weights, uint32_t layer, uint32_t index);

}  // namespace kv
