// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by mnn_reader.cc, mnn_writer.cc

#include "formats/registry.h"

namespace kv::mnn {

// KV dumps of MNN's distribution experiments: see FORMAT.md.
Confidence ProbeDump(const Source& source);

// A layer folder, a run folder or a root with one run. `layout` "logical" or "packed" chooses where
// a layer has both (logical otherwise); `as_dtype` "bf16" reads two-byte elements as bfloat16,
// which the engine does not tell from binary16. Throws kAmbiguousFormat for a root with several
// runs.
Snapshot OpenDump(Source source, const OpenOptions& options);

// One logical update per layer from token 0, in f32 or f16. Throws kUnsupportedDtype,
// kUnsupportedLayout, kGeometryMissing.
void WriteDump(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);

}  // namespace kv::mnn
