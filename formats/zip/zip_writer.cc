// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Writes stored zip members in one pass, with zip64 records where sizes need them.
#include <zlib.h>

#include <algorithm>

#include "formats/zip/zip.h"
#include "lib/core/base/bytes.h"

namespace kv {
namespace {

using namespace zip;  // NOLINT: the numbers of the format

constexpr uint64_t kDataAlignment = 64;
constexpr uint64_t kCrcField = 14;  // offset in the local header
constexpr uint16_t kVersion = 20, kVersion64 = 45;
constexpr uint16_t kMadeByUnix = 3 << 8;
constexpr uint32_t kRegularFile0644 = 0100644u << 16;
constexpr uint16_t kFirstDate = 1 << 5 | 1;  // 1980-01-01, the earliest date of the format

uint16_t NameFlags(std::string_view name) {
  const bool ascii = std::all_of(name.begin(), name.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  return ascii ? 0 : kFlagUtf8;
}

// Writes the common part of local header and directory entry, from `version needed` to `size`.
void PutCommon(ByteWriter& out, std::string_view name, bool wide, uint32_t crc, uint64_t size) {
  const uint32_t narrow = wide ? kSaturated32 : static_cast<uint32_t>(size);
  out.Write<uint16_t>(wide ? kVersion64 : kVersion);
  out.Write<uint16_t>(NameFlags(name));
  out.Write<uint16_t>(kStored);
  out.Write<uint16_t>(0);
  out.Write<uint16_t>(kFirstDate);
  out.U32(crc);
  out.U32(narrow);
  out.U32(narrow);
  out.Write(static_cast<uint16_t>(name.size()));
}

}  // namespace

bool ZipWriter::NeedsZip64(uint64_t value) const {
  return zip64_ == Zip64::kAlways || value >= kSaturated32;
}

void ZipWriter::Begin(std::string_view name, uint64_t size) {
  KV_ASSERT(name.size() < kSaturated16);
  const uint64_t at = file_.size();
  const bool wide = NeedsZip64(size);
  const uint64_t wide_bytes = wide ? 20 : 0;
  const uint64_t data = at + kLocalBytes + name.size() + wide_bytes;
  // The padding field has a header of 6 bytes: id, size, alignment.
  const uint64_t pad = data % kDataAlignment == 0 ? 0 : RoundUp(data + 6, kDataAlignment) - data;
  ByteWriter header;
  header.U32(kLocalSignature);
  PutCommon(header, name, wide, 0, size);
  header.Write(static_cast<uint16_t>(wide_bytes + pad));
  header.Append(name);
  if (wide) {
    header.Write<uint16_t>(kZip64Extra);
    header.Write<uint16_t>(16);
    header.U64(size);
    header.U64(size);
  }
  if (pad != 0) {
    header.Write<uint16_t>(kAlignmentExtra);
    header.Write(static_cast<uint16_t>(pad - 4));
    header.Write(static_cast<uint16_t>(kDataAlignment));
    header.Pad(pad - 6);
  }
  file_.Write(header.bytes());
  members_.push_back({std::string(name), size, at});
  written_ = 0;
}

void ZipWriter::Write(ByteSpan bytes) {
  Member& member = members_.back();
  written_ += bytes.size();
  KV_ASSERT(written_ <= member.size);
  member.crc32 = static_cast<uint32_t>(
      crc32_z(member.crc32, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  file_.Write(bytes);
}

void ZipWriter::End() {
  const Member& member = members_.back();
  KV_ASSERT(written_ == member.size);
  std::byte crc[4];
  StoreLE(crc, member.crc32);
  file_.WriteAt(member.local_offset + kCrcField, crc);
}

void ZipWriter::Add(std::string_view name, ByteSpan bytes) {
  Begin(name, bytes.size());
  Write(bytes);
  End();
}

void ZipWriter::PutEntry(const Member& member, ByteWriter& out) const {
  const bool wide_size = NeedsZip64(member.size);
  const bool wide_offset = NeedsZip64(member.local_offset);
  const uint16_t extra = static_cast<uint16_t>((wide_size ? 16 : 0) + (wide_offset ? 8 : 0));
  out.U32(kCentralSignature);
  out.Write<uint16_t>(kMadeByUnix | (extra != 0 ? kVersion64 : kVersion));
  PutCommon(out, member.name, wide_size, member.crc32, member.size);
  out.Write(static_cast<uint16_t>(extra == 0 ? 0 : extra + 4));
  out.Write<uint16_t>(0);  // comment
  out.Write<uint16_t>(0);  // disk
  out.Write<uint16_t>(0);  // binary
  out.U32(kRegularFile0644);
  out.U32(wide_offset ? kSaturated32 : static_cast<uint32_t>(member.local_offset));
  out.Append(member.name);
  if (extra == 0) return;
  out.Write<uint16_t>(kZip64Extra);
  out.Write(extra);
  if (wide_size) {
    out.U64(member.size);
    out.U64(member.size);
  }
  if (wide_offset) out.U64(member.local_offset);
}

void ZipWriter::Finish() {
  const uint64_t directory = file_.size();
  ByteWriter out;
  for (const Member& member : members_) PutEntry(member, out);
  const uint64_t size = out.size();
  const uint64_t count = members_.size();
  if (NeedsZip64(std::max(directory, size)) || count >= kSaturated16) {
    const uint64_t at = directory + size;
    out.U32(kEnd64Signature);
    out.U64(kEnd64Bytes - 12);
    out.Write<uint16_t>(kMadeByUnix | kVersion64);
    out.Write<uint16_t>(kVersion64);
    out.U32(0);
    out.U32(0);
    out.U64(count);
    out.U64(count);
    out.U64(size);
    out.U64(directory);
    out.U32(kLocator64Signature);
    out.U32(0);
    out.U64(at);
    out.U32(1);
  }
  const auto narrow16 = [&](uint64_t value) {
    return zip64_ == Zip64::kAlways || value >= kSaturated16 ? kSaturated16
                                                             : static_cast<uint16_t>(value);
  };
  const auto narrow32 = [&](uint64_t value) {
    return NeedsZip64(value) ? kSaturated32 : static_cast<uint32_t>(value);
  };
  out.U32(kEndSignature);
  out.U32(0);  // disks
  out.Write(narrow16(count));
  out.Write(narrow16(count));
  out.U32(narrow32(size));
  out.U32(narrow32(directory));
  out.Write<uint16_t>(0);  // comment
  file_.Write(out.bytes());
}

}  // namespace kv
