// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by torch_reader.cc, torch_writer.cc

#include <string_view>
#include <vector>

#include "formats/format.h"
#include "formats/tensors/kvtool_arrays.h"
#include "lib/core/base/tensor.h"

namespace kv {

// PyTorch's .pt and .pth (zip and legacy) and plain pickles, read without executing anything.
// Grammar, names of tensors and what is refused: FORMAT.md.

inline constexpr uint64_t kTorchMaxBytes = uint64_t{64} << 30;

// Whether the bytes are one of the three containers.
bool LooksLikeTorch(const Source& source);
// Whether TensorFile::format, and that of a trace, is one of the three.
bool IsTorchForm(std::string_view format);
// Reads only headers and pickles: tensors are views of the mapped file. A spool takes deflated and
// big-endian values; `max_bytes` limits it and the size of any one tensor.
TensorFile ReadTorch(Source source, uint64_t max_bytes = kTorchMaxBytes);

// A flat OrderedDict of contiguous CPU tensors, and of texts behind them, in the zip form that
// torch.load reads; `stem` names its root folder. Same input, same bytes.
void WriteTorch(const std::vector<TensorToWrite>& tensors, std::string_view stem, AtomicFile& file,
                const TensorMetadata& texts = {});

// For the registry.
Confidence ProbeTorch(const Source& source);
Snapshot OpenTorch(Source source, const OpenOptions& options);
// A tuple over layers of (K, V), [1, head, token, dim] each: Hugging Face's legacy cache, which
// DynamicCache.from_legacy_cache takes. Throws kUnsupportedLayout for caches that it cannot
// express.
void WriteTorchTuple(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);
// Writes a flat dict with kvtool's own names and metadata; nothing is lost.
void WriteTorchSnapshot(const Snapshot& snapshot, const std::string& path,
                        const OutputRules& rules);

}  // namespace kv
