// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <zlib.h>

#include "formats/zip/zip.h"
#include "tests/fuzz/repair.h"

namespace kv::fuzz {
namespace {

constexpr uint64_t kCentralMethodAt = 10, kCentralCrcAt = 16, kCentralSizeAt = 20;
constexpr uint64_t kCentralOffsetAt = 42;
constexpr uint64_t kLocalCrcAt = 14, kLocalNameAt = 26;

// Finds the content of the member that the directory entry at `central` names, if it is stored and
// in bounds.
std::optional<ByteSpan> StoredContent(ByteSpan file, uint64_t central) {
  const uint64_t local = LoadLE<uint32_t>(&file[central + kCentralOffsetAt]);
  const uint64_t size = LoadLE<uint32_t>(&file[central + kCentralSizeAt]);
  if (LoadLE<uint16_t>(&file[central + kCentralMethodAt]) != 0) return std::nullopt;
  if (local > file.size() || file.size() - local < zip::kLocalBytes) return std::nullopt;
  const uint64_t content = local + zip::kLocalBytes +
                           LoadLE<uint16_t>(&file[local + kLocalNameAt]) +
                           LoadLE<uint16_t>(&file[local + kLocalNameAt + 2]);
  if (content > file.size() || file.size() - content < size) return std::nullopt;
  return file.subspan(content, size);
}

}  // namespace

Bytes RepairZip(ByteSpan archive) {
  Bytes file(archive.begin(), archive.end());
  for (uint64_t at = 0; at + zip::kCentralBytes <= file.size(); ++at) {
    if (LoadLE<uint32_t>(&file[at]) != zip::kCentralSignature) continue;
    const auto content = StoredContent(file, at);
    if (!content) continue;
    const auto crc = static_cast<uint32_t>(
        crc32_z(0, reinterpret_cast<const Bytef*>(content->data()), content->size()));
    const uint64_t local = LoadLE<uint32_t>(&file[at + kCentralOffsetAt]);
    StoreLE(&file[at + kCentralCrcAt], crc);
    StoreLE(&file[local + kLocalCrcAt], crc);
  }
  return file;
}

}  // namespace kv::fuzz
