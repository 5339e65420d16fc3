// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/snapshot/snapshot.h"

namespace kv::raw {

// Far above any model; a mistake in the order must not create billions of layers.
inline constexpr uint64_t kMostLayers = 1 << 16;

// One axis of headerless data, outermost first. Letters: 2 (K, then V), L layers, B batch rows, T
// and P tokens (if both: the outer one counts pages, the inner one tokens of a page), H kv heads, G
// groups of H heads each, D dims of a head, C channels of undivided heads.
struct Axis {
  char letter;
  std::optional<uint64_t> size;  // empty: the size of the file decides
  bool operator==(const Axis&) const = default;
};

// The parts of `--raw DTYPE:ORDER:SIZES`. A preset is such a spec with a name.
struct Spec {
  std::string name;  // source of the spec, for messages: "--raw"
  DType dtype = DType::kF16;
  std::vector<Axis> axes;
  // Size of a head of V if it differs from K's, which D states. Axis 2 then comes before D.
  std::optional<uint64_t> v_dim = std::nullopt;
};

// Throws kUsage naming the part that is wrong.
Spec ParseSpec(std::string_view text);

// Returns the spec as the text of the flag.
std::string Described(const Spec& spec);

// Returns the bytes of all values; every axis must be known.
uint64_t BytesOf(const Spec& spec);

// Computes the size of the open axis. Throws kSizeMismatch if `file_bytes` does not fit.
Spec Resolve(Spec spec, uint64_t file_bytes);

// Makes views of `data`, which lies in `source` and consists of the spec's elements; its size gives
// the open axis. `batch` chooses the row of B and is required if there are several. Throws
// kSizeMismatch, kUsage.
Snapshot MakeSnapshot(Source source, ByteSpan data, const Spec& spec,
                      std::optional<uint64_t> batch);

}  // namespace kv::raw
