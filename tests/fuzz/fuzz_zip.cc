// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/zip/zip.h"
#include "tests/fuzz/accepted.h"
#include "tests/fuzz/fuzz_repair.h"
#include "tests/fuzz/repair.h"

kv::Bytes FuzzRepair(kv::ByteSpan input, unsigned) { return kv::fuzz::RepairZip(input); }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  try {
    kv::ZipArchive archive(kv::FileSource::FromBytes({begin, begin + size}, "fuzz"));
    archive.Inflate(1 << 20);
    for (const kv::ZipEntry& entry : archive.entries()) {
      if (!entry.deflated) archive.CheckStored(entry);
      if (archive.Data(entry).size() != entry.size) __builtin_trap();
    }
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
