// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "formats/format.h"
#include "lib/core/base/tensor.h"

namespace kv {

// One .npy file (one tensor without a name) or a folder of them (each named by its file). Views map
// the file; only big-endian values are copied, to a spool. Throws as the rules of FORMAT.md say.
TensorFile ReadNpy(Source source, const OpenOptions& options);
// The arrays of an .npz; deflated members are inflated here, within options.max_bytes.
TensorFile ReadNpz(Source source, const OpenOptions& options);

// For the registry.
Confidence ProbeNpy(const Source& source);
Confidence ProbeNpz(const Source& source);
Snapshot OpenNpy(Source source, const OpenOptions& options);
Snapshot OpenNpz(Source source, const OpenOptions& options);
void WriteNpy(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);
void WriteNpz(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);

}  // namespace kv
