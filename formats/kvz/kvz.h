// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by kvz_reader.cc, source_snapshot.cc

#include "formats/registry.h"
#include "lib/core/archive/archive.h"

// Opens kvtool's own archive as a snapshot, for inspect, convert and the replays.
namespace kv {

Confidence ProbeKvz(const Source& source);
// With OpenOptions::metadata_only it decodes nothing, otherwise all tensors, into an unnamed
// temporary file.
Snapshot OpenKvz(Source source, const OpenOptions& options);

// Calls LoadTensors. If a wanted tensor has no chunks of its own (packed tiles, deflated members),
// it restores the whole source into an unnamed temporary file and calls that format's reader.
Snapshot LoadSnapshot(const Archive& archive, const Selection& wanted, const OpenOptions& options,
                      ThreadPool& pool, Progress* progress = nullptr);

}  // namespace kv
