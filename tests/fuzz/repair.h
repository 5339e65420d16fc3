// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

#include "lib/core/base/bytes.h"

// A fuzzer's mutation of a hashed file fails at the first hash. These functions repair the hashes
// of a mutated file, so that the code after the check is reached. They trust nothing: bytes of a
// structure that is otherwise damaged stay as they are.
namespace kv::fuzz {

struct KvzRepair {
  // Rebuilds the index from the chunk records; otherwise the mutated payload is kept and its hash
  // repaired.
  bool rebuild_index = true;
  // Also repairs the hash of the decoded bytes of chunks that decode.
  bool decoded_hashes = true;
};
// Repairs a .kvz: hashes of header, records, tables and trailer. Tables are written uncompressed,
// so that a mutation of the result changes their fields.
Bytes RepairKvz(ByteSpan archive, const KvzRepair& repair);

// Repairs a zip: the CRC of each stored member in its local header and in the directory.
Bytes RepairZip(ByteSpan archive);

}  // namespace kv::fuzz
