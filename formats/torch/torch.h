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
// FORMAT.md has the grammar, the names of tensors and what is refused.

inline constexpr uint64_t kTorchMaxBytes = uint64_t{64} << 30;

// Returns true if the bytes are one of the three containers.
bool LooksLikeTorch(const Source& source);
// Returns true if `format`, of a TensorFile or a trace, names one of the three torch containers.
bool IsTorchForm(std::string_view format);
// Reads only headers and pickles: tensors are views of the mapped file. Deflated and big-endian
// values go to a spool file; `max_bytes` limits it and the size of any one tensor.
TensorFile ReadTorch(Source source, uint64_t max_bytes = kTorchMaxBytes);

// Writes a flat OrderedDict of contiguous CPU tensors, followed by texts, in the zip form that
// torch.load reads; `stem` names its root folder. Equal inputs give equal bytes.
void WriteTorch(const std::vector<TensorToWrite>& tensors, std::string_view stem, AtomicFile& file,
                const TensorMetadata& texts = {});

// Detects the formats, for the registry.
Confidence ProbeTorch(const Source& source);
Snapshot OpenTorch(Source source, const OpenOptions& options);
// Writes a tuple over layers of (K, V), [1, head, token, dim] each: Hugging Face's legacy cache,
// which DynamicCache.from_legacy_cache reads. Throws kUnsupportedLayout for caches that it cannot
// express.
void WriteTorchTuple(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);
// Writes a flat dict with kvtool's own names and metadata, which loses nothing.
void WriteTorchSnapshot(const Snapshot& snapshot, const std::string& path,
                        const OutputRules& rules);

}  // namespace kv
