// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reading and writing zip files, for npz and torch.
#pragma once  // implemented by zip_reader.cc, zip_writer.cc

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/file.h"
#include "lib/core/base/name_table.h"
#include "lib/core/base/output.h"

namespace kv {

struct ZipEntry {
  // The name in the directory: a label, never a path. Valid as long as the archive.
  std::string_view name;
  bool deflated = false;  // false: stored
  uint32_t crc32 = 0;
  uint64_t size = 0;  // size of the content
  uint64_t compressed_size = 0;
  uint64_t data_offset = 0;   // offset of the content in the archive
  uint64_t spool_offset = 0;  // offset of the content in the spool, once inflated
};

// The directory of a zip file and its content as views: stored entries lie in the mapped archive,
// deflated ones in a spool file. FORMAT.md has the rules; everything that two readers could
// interpret differently is refused.
class ZipArchive {
 public:
  // Reads and checks the directory and every local header, but not the content. Throws kBadZip,
  // kBadOffsets, kDuplicateName, kTruncated, kUnsupportedKind.
  explicit ZipArchive(std::shared_ptr<const FileSource> file);

  const std::vector<ZipEntry>& entries() const { return entries_; }  // in directory order
  const ZipEntry* Find(std::string_view name) const;

  // Inflates all deflated entries into one spool file and checks their sizes and CRC. Throws kLimit
  // when they declare more than `max_bytes` together, kSizeMismatch, kBadPayload, kChecksum.
  void Inflate(uint64_t max_bytes);
  // Returns null if no entry is deflated or Inflate was not called.
  const std::shared_ptr<const FileSource>& spool() const { return spool_; }

  // Returns the content of an entry; deflated entries need Inflate first.
  ByteSpan Data(const ZipEntry& entry) const;
  // Reads a stored entry and compares its CRC. Throws kChecksum.
  void CheckStored(const ZipEntry& entry) const;
  void CheckStored() const;  // checks each member

  const std::shared_ptr<const FileSource>& file() const { return file_; }

 private:
  std::shared_ptr<const FileSource> file_;
  std::shared_ptr<const FileSource> spool_;
  NameTable names_;
  std::vector<ZipEntry> entries_;
};

// Returns true if a zip file has a member of this name in any folder. Reads only the directory, up
// to the first such member, and throws faults of the directory up to there.
bool HoldsMember(ByteSpan file, std::string_view name);

// Returns the CRC-32 of zip files, which other formats use too.
uint32_t Crc32(ByteSpan bytes);

// Writes stored members one after another in bounded memory; the bytes of a member are passed to
// Write. Content begins at multiples of 64, so that arrays in it are aligned when mapped. No times
// are stored, so equal inputs give equal bytes.
class ZipWriter : public Sink {
 public:
  // The rule for zip64 records: they are written if sizes or counts need them, or always.
  enum class Zip64 { kWhenNeeded, kAlways };
  explicit ZipWriter(AtomicFile& file, Zip64 zip64 = Zip64::kWhenNeeded)
      : file_(file), zip64_(zip64) {
    file_.NeedSeeking();  // a member's checksum precedes its content and is filled in last
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
  void PutEntry(const Member& member, ByteWriter& directory) const;

  AtomicFile& file_;
  Zip64 zip64_;
  std::vector<Member> members_;
  uint64_t written_ = 0;  // bytes written to the open member
};

}  // namespace kv

// Constants of the format, for formats/zip and its fuzz target.
namespace kv::zip {
inline constexpr uint32_t kLocalSignature = 0x04034b50;
inline constexpr uint32_t kCentralSignature = 0x02014b50;
inline constexpr uint32_t kEndSignature = 0x06054b50;
inline constexpr uint32_t kEnd64Signature = 0x06064b50;
inline constexpr uint32_t kLocator64Signature = 0x07064b50;
inline constexpr uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22;
inline constexpr uint64_t kEnd64Bytes = 56, kLocator64Bytes = 20;
inline constexpr uint16_t kZip64Extra = 1;
inline constexpr uint16_t kAlignmentExtra = 0xd935;  // all readers ignore it
inline constexpr uint16_t kStored = 0, kDeflated = 8;
inline constexpr uint16_t kFlagSizesFollow = 1 << 3, kFlagUtf8 = 1 << 11;
// Flags that are refused: encrypted, patched, strongly encrypted, directory masked.
inline constexpr uint16_t kFlagsRefused = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 13;
inline constexpr uint32_t kSaturated32 = 0xffffffff;
inline constexpr uint16_t kSaturated16 = 0xffff;

}  // namespace kv::zip
