// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

#include "lib/core/base/bytes.h"

// Files whose content lies under hashes stop a fuzzer at the first of them. These functions put the
// hashes of a mutated file right again, so that what lies behind them is reached. They trust
// nothing: where a structure is damaged beyond its hashes they keep the bytes as they are.
namespace kv::fuzz {

struct KvzRepair {
  // Writes the index again from the chunk records; otherwise its mutated payload is kept under a
  // right hash.
  bool rebuild_index = true;
  // Chunks that decode get the right hash of their decoded bytes, too.
  bool decoded_hashes = true;
};
// A .kvz with right hashes of header, records, tables and trailer. Tables come out uncompressed, so
// that a mutation of the result changes their fields.
Bytes RepairKvz(ByteSpan archive, const KvzRepair& repair);

// A zip with the right CRC of each stored member in its local header and in the directory.
Bytes RepairZip(ByteSpan archive);

}  // namespace kv::fuzz
