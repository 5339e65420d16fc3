// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/bytes.h"

namespace kv {

// The CRC-32 of zip files, which other formats use too.
uint32_t Crc32(ByteSpan bytes);

}  // namespace kv
