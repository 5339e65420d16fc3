// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/output.h"

namespace kv {

// Writes stored members one after another in bounded memory; the bytes of a member go through
// Write. Content begins at multiples of 64, so that arrays in it are aligned when mapped. No times
// are stored: same input, same bytes.
class ZipWriter : public Sink {
 public:
  // zip64 records appear where sizes or counts need them, or everywhere.
  enum class Zip64 { kWhenNeeded, kAlways };
  explicit ZipWriter(AtomicFile& file, Zip64 zip64 = Zip64::kWhenNeeded)
      : file_(file), zip64_(zip64) {
    file_.NeedSeeking();  // the checksum of a member stands before it
  }

  // Begins a member of known size: exactly that many bytes must be written before End.
  void Begin(std::string_view name, uint64_t size);
  void Write(ByteSpan bytes) override;
  void End();
  void Add(std::string_view name, ByteSpan bytes);
  // Writes the directory; does not commit the file.
  void Finish();

 private:
  struct Member {
    std::string name;
    uint64_t size, local_offset;
    uint32_t crc32 = 0;
  };
  bool NeedsZip64(uint64_t value) const;

  AtomicFile& file_;
  Zip64 zip64_;
  std::vector<Member> members_;
  uint64_t written_ = 0;  // of the open member
};

}  // namespace kv
