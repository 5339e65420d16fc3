// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/registry.h"
#include "lib/core/archive/archive.h"

// kvtool's own archive as a snapshot: what inspect, convert and the replays see of a .kvz.
namespace kv {

Confidence ProbeKvz(const Source& source);
// With OpenOptions::metadata_only nothing is decoded; otherwise all tensors are, into an unnamed
// temporary file.
Snapshot OpenKvz(Source source, const OpenOptions& options);

// LoadTensors, or, where a wanted tensor is not in chunks of its own (packed tiles, deflated
// members), the whole source, restored into an unnamed temporary file and read by its own reader.
Snapshot LoadSnapshot(const Archive& archive, const Selection& wanted, const OpenOptions& options,
                      ThreadPool& pool, Progress* progress = nullptr);

}  // namespace kv
