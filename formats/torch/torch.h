// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string_view>
#include <vector>

#include "formats/registry.h"
#include "formats/tensors/tensor_writer.h"
#include "lib/core/base/tensor.h"

namespace kv {

// PyTorch's .pt and .pth (zip and legacy) and plain pickles, read without executing anything.
// Grammar, names of tensors and what is refused: FORMAT.md.

inline constexpr uint64_t kTorchMaxBytes = uint64_t{64} << 30;

// Whether the bytes are one of the three containers.
bool LooksLikeTorch(const Source& source);
// Headers and pickles only: tensors are views of the mapped file. What is deflated or big-endian is
// unpacked to a spool; `max_bytes` caps that and the size of any one tensor.
TensorFile ReadTorch(Source source, uint64_t max_bytes = kTorchMaxBytes);

// A flat OrderedDict of contiguous CPU tensors, and of texts behind them, in the zip form that
// torch.load reads; `stem` names its root folder. Same input, same bytes.
void WriteTorch(const std::vector<TensorToWrite>& tensors, std::string_view stem, AtomicFile& file,
                const TensorMetadata& texts = {});

// For the registry.
Confidence ProbeTorch(const Source& source);
Snapshot OpenTorch(Source source, const OpenOptions& options);
// A tuple over layers of (K, V), [1, head, token, dim] each: Hugging Face's legacy cache, which
// DynamicCache.from_legacy_cache takes. Throws kUnsupportedLayout for what it cannot say.
void WriteTorchTuple(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);
// kvtool's own names and words in a flat dict: nothing is lost.
void WriteTorchSnapshot(const Snapshot& snapshot, const std::string& path,
                        const OutputRules& rules);

}  // namespace kv
