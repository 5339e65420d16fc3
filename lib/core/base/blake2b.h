// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/bytes.h"

namespace kv {

// BLAKE2b of 8 bytes, without a key, as a little-endian number: what engines name slots by.
uint64_t Blake2b64(ByteSpan message);

}  // namespace kv
