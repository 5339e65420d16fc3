// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/format.h"

// Frames of libkvtool as files (.kvf): pages and chunks as the plug-ins of engines store them. The
// grammar is lib/core/frame/FORMAT.md; FORMAT.md in this folder says how a frame reads as a cache.
namespace kv::kvf {

Confidence Probe(const Source& source);
// Decodes the frame, which checks its hashes. Throws as FrameCoder::Decode, kLimit where it claims
// more than options.max_bytes, kGeometryMissing where it does not say how its values are ordered.
Snapshot Open(Source source, const OpenOptions& options);

}  // namespace kv::kvf
