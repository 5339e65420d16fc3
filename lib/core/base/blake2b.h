// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>

#include "lib/core/base/bytes.h"

namespace kv {

// BLAKE2b with 8 bytes of output and no key, as a little-endian number. Engines name slots by it.
uint64_t Blake2b64(ByteSpan message);

// BLAKE2b with 32 bytes of output and no key: a hash that nobody can make two contents for.
using Hash256Bytes = std::array<std::byte, 32>;
Hash256Bytes Blake2b256(ByteSpan message);

}  // namespace kv
