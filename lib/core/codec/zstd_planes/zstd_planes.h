// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>

#include "lib/core/base/dtype.h"
#include "lib/core/codec/gear/gear_container.h"

// Block-quantised rows (q8_0 ...) as planes: every field of the block struct on its own, scales as
// their two byte planes, each plane one zstd frame. formats/gear/FORMAT.md is the grammar.
namespace kv {

// Whether this dtype has a block struct that EncodeBlockPlanes knows.
bool HasBlockPlanes(DType dtype);

// `raw` is a positive number of whole blocks. With `literals` frames hold no matches: quants have
// none, and are done sooner.
PlaneChoices EncodeBlockPlanes(DType dtype, ByteSpan raw, bool literals, CodecScratch& scratch,
                               Bytes& out);
// Throws kBadFrame, kTruncated, kTrailingBytes, kBadPayload.
void DecodeBlockPlanes(DType dtype, ByteSpan payload, std::span<std::byte> raw,
                       CodecScratch& scratch);

}  // namespace kv
