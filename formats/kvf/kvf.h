// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/format.h"

// Frames of libkvtool as files (.kvf): pages and chunks as the engines' plug-ins store them.
// lib/core/frame/FORMAT.md has the grammar, FORMAT.md in this folder says how a frame becomes a
// cache.
namespace kv::kvf {

Confidence Probe(const Source& source);
// Decodes the frame and checks its hashes. Throws what FrameCoder::Decode throws, kLimit if it
// claims more than options.max_bytes, kGeometryMissing if the order of its values is unknown.
Snapshot Open(Source source, const OpenOptions& options);

}  // namespace kv::kvf
