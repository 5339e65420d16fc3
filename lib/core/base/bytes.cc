// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "lib/core/base/checked.h"
#include "lib/core/base/utf8.h"

namespace kv {

static_assert(std::endian::native == std::endian::little, "kvtool runs on little-endian hosts");

void ByteReader::FailShort(uint64_t count, std::string_view field) const {
  throw std::move(Error(Finding::kTruncated,
                        fmt::format("{} needs {} bytes, {} left", field, count, remaining()))
                      .At(offset()));
}

ByteSpan ByteReader::TakeArray(uint64_t count, uint64_t item_bytes, std::string_view field) {
  uint64_t total;
  if (__builtin_mul_overflow(count, item_bytes, &total)) {
    throw Error(Finding::kOverflow,
                fmt::format("{}: {} items of {} bytes overflow 64 bits", field, count, item_bytes))
        .At(offset());
  }
  return Take(total, field);
}

void ByteReader::ExpectEnd(std::string_view what) const {
  if (at_end()) return;
  throw Error(Finding::kTrailingBytes, fmt::format("{} bytes follow {}", remaining(), what))
      .At(offset());
}

void ByteWriter::Append(ByteSpan bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }

void ByteWriter::Pad(uint64_t count, std::byte value) { bytes_.insert(bytes_.end(), count, value); }

std::string Printable(std::string_view text, bool lines) {
  std::string out;
  while (!text.empty()) {
    const size_t length = Utf8Length(text), control = ControlLength(text);
    const size_t taken = std::max<size_t>(length, 1);
    if (length > 0 && (control == 0 || (lines && text[0] == '\n'))) {
      out += text.substr(0, taken);
    } else {
      for (const char c : text.substr(0, taken)) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    }
    text.remove_prefix(taken);
  }
  return out;
}

std::string Escaped(std::string_view text, size_t limit) {
  std::string out;
  for (char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '\\') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  if (text.size() > limit) out += "...";
  return out;
}

}  // namespace kv
