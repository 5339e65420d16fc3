// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/zip/crc32.h"

#include <zlib.h>

namespace kv {

uint32_t Crc32(ByteSpan bytes) {
  const uLong start = crc32_z(0, nullptr, 0);
  return static_cast<uint32_t>(
      crc32_z(start, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace kv
