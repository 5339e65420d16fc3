// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by mlx.cc, mlx_state.cc

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/format.h"
#include "lib/core/base/tensor.h"

namespace kv::mlx {

// Makes the error for a file whose numbers do not fit together.
template <typename... Values>
Error Bad(fmt::format_string<Values...> text, Values&&... values) {
  return Error(Finding::kBadField, fmt::format(text, std::forward<Values>(values)...));
}

enum class LayerClass {
  kPlain,
  kChunked,  // a cache whose first tokens were dropped
  kRing,
  kQuantised,
  kBatch,  // several sequences, with padding before the shorter ones
  kBatchRing,
  kStateSpace,
  kOther
};

// One layer of a prompt cache, from a file of any version.
struct LayerState {
  std::string class_name;
  LayerClass kind = LayerClass::kOther;
  std::vector<uint64_t> numbers;  // state that the class stores beside the arrays, in its order
  // For each sequence of a batch: the position after its last token, and the padding before its
  // first, negative if a ring has overwritten more than that.
  std::vector<int64_t> offsets = {}, paddings = {};

  bool is_batch() const { return kind == LayerClass::kBatch || kind == LayerClass::kBatchRing; }
};

// The layers by their classes; empty if the metadata name none. Versions before 0.32 keep numbers
// as text in the metadata, later ones as arrays of one element beside K and V.
struct PromptCache {
  std::vector<LayerState> layers;
  bool in_arrays = false;                                 // numbers are arrays
  std::vector<std::pair<std::string, std::string>> user;  // metadata from the user who saved it
};
PromptCache ReadPromptCache(const TensorFile& file);

// Arrays by name, for files with very many.
class ArraysByName {
 public:
  explicit ArraysByName(const TensorFile& file);
  const NamedTensor* Find(const std::string& name) const;

 private:
  std::unordered_map<std::string_view, const NamedTensor*> arrays_;
};

// The tokens of a buffer that are in use, in the order of their positions.
struct Used {
  struct Run {
    uint64_t begin, end;
  };
  std::vector<Run> runs;
  uint64_t tokens = 0;
  uint64_t kept = 0;    // tokens kept from the beginning of the text
  uint64_t offset = 0;  // position after the last token

  int64_t GetPosition(uint64_t i) const {
    return static_cast<int64_t>(i < kept ? i : offset - tokens + i);
  }
};

// Returns the used tokens of a layer whose buffer has `room` tokens; `in_arrays` tells the order of
// its numbers, which has changed between versions. `row` chooses a sequence of a class for batches;
// without it the padding before shorter sequences counts as used, so that all have one length.
// Throws kBadField, and kUnsupportedKind if the file does not tell.
Used FindUsedRows(const LayerState& layer, uint64_t room, bool in_arrays,
                  std::optional<uint64_t> row);

// Prompt caches of mlx-lm: safetensors whose metadata name each layer's class. The reader uses the
// state that a class keeps beside K and V: used length, start of a ring, padding of a batch.
// Grammar: FORMAT.md.
bool IsPromptCache(const TensorFile& file);

// Throws kUnsupportedKind for state-space layers and unknown classes, kBadField, kSizeMismatch,
// kMissingRecord.
Snapshot OpenPromptCache(TensorFile file, const OpenOptions& options);

}  // namespace kv::mlx
