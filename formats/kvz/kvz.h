// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/registry.h"

// kvtool's own archive as a snapshot: what inspect, convert and the replays see of a .kvz.
namespace kv {

Confidence ProbeKvz(const Source& source);
// With OpenOptions::metadata_only nothing is decoded; otherwise all tensors are, into an unnamed
// temporary file.
Snapshot OpenKvz(Source source, const OpenOptions& options);

}  // namespace kv
