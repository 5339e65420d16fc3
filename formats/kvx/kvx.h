// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Learnt transforms as files (.kvx).
#pragma once

#include "lib/core/base/bytes.h"
#include "lib/core/transform/transform.h"

namespace kv {

// Returns a learnt transform as a file. FORMAT.md has the grammar.
Bytes WriteTransform(const Transform& transform);
bool LooksLikeTransform(ByteSpan file);
// Throws kBadMagic, kUnsupportedVersion, kTruncated, kChecksum, kTrailingBytes, kBadField, kLimit.
Transform ReadTransform(ByteSpan file);

}  // namespace kv
