// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/bytes.h"

namespace kv {

// BLAKE2b with 8 bytes of output and no key, as a little-endian number. Engines name slots by it.
uint64_t Blake2b64(ByteSpan message);

}  // namespace kv
