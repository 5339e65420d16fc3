// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/bytes.h"

#include <bit>

namespace kv {

static_assert(std::endian::native == std::endian::little, "kvtool runs on little-endian hosts");

void ByteReader::FailShort(uint64_t count, std::string_view field) const {
  throw Error(Finding::kTruncated, "{} needs {} bytes, {} left", field, count, remaining())
      .At(offset());
}

ByteSpan ByteReader::TakeArray(uint64_t count, uint64_t item_bytes, std::string_view field) {
  uint64_t total;
  if (__builtin_mul_overflow(count, item_bytes, &total)) {
    throw Error(Finding::kOverflow, "{}: {} items of {} bytes overflow 64 bits", field, count,
                item_bytes)
        .At(offset());
  }
  return Take(total, field);
}

void ByteReader::ExpectEnd(std::string_view what) const {
  if (at_end()) return;
  throw Error(Finding::kTrailingBytes, "{} bytes follow {}", remaining(), what).At(offset());
}

void ByteWriter::Append(ByteSpan bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }

void ByteWriter::Pad(uint64_t count, std::byte value) { bytes_.insert(bytes_.end(), count, value); }

std::string Hex(ByteSpan bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

}  // namespace kv
