// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

#include "lib/core/archive/archive.h"
#include "lib/core/base/bytes.h"

// The bytes of an archive: header, records, heads, trailer. FORMAT.md has their tables. head.cc
// implements heads, table.cc and description.cc the source table, planner.cc the Planner,
// records.cc the rest.
namespace kv::kvz {

constexpr uint32_t kVersion = 1;
constexpr uint64_t kHeaderBytes = 24, kTrailerBytes = 40;
constexpr uint64_t kPrefixBytes = 32, kHeadHashBytes = 8, kChunkHeadBytes = 104;
constexpr uint64_t kTableHeadBytes = 16, kMaxHeadBytes = 256;
// Gaps of up to this size, such as a row header, are stored in the head of the chunk that follows.
constexpr uint64_t kMaxLeadBytes = 128;
constexpr uint64_t kMaxChunkBytes = 16 << 20;
constexpr uint64_t kMaxExtentBytes = 64 << 20;
// What reading a record's head brings into memory with it.
constexpr uint64_t kFaultWindow = 128 << 10;

// Stored in archives: values are never changed and never reused.
enum class RecordType : uint32_t { kSource = 1, kChunk = 2, kIndex = 3 };

Bytes HeaderBytes();
bool HasMagic(ByteSpan archive);
// Throws kTruncated, kBadMagic, kChecksum, kUnsupportedVersion.
void CheckHeader(ByteSpan archive);

struct Trailer {
  uint64_t index_offset = 0, index_bytes = 0, archive_bytes = 0;
};
Bytes TrailerBytes(const Trailer& trailer);
bool HasTrailerMagic(ByteSpan archive);
// Throws kTruncated, kBadMagic, kChecksum, kBadOffsets.
Trailer ReadTrailer(ByteSpan archive);

struct Record {
  uint32_t type = 0, tag = 0;
  uint64_t offset = 0;
  ByteSpan head;
  uint64_t payload_offset = 0, payload_bytes = 0, payload_hash = 0;

  uint64_t end() const { return payload_offset + payload_bytes; }
};
// Returns the tag that ties records to their archive, so that a search through a damaged archive
// does not pick up records of another archive that lies in a payload.
uint32_t TagOf(ByteSpan source_table);
// Returns everything that precedes the payload.
Bytes RecordStart(RecordType type, uint32_t tag, ByteSpan head, uint64_t payload_bytes,
                  uint64_t payload_hash);
// Reads and checks a record without its payload, which may reach past the end of the archive.
// Throws kTruncated, kBadMagic, kChecksum, kBadField.
Record ReadRecord(ByteSpan archive, uint64_t offset);
// Returns the payload after checking its hash. Throws kTruncated, kChecksum.
ByteSpan Payload(ByteSpan archive, uint64_t offset, uint64_t bytes, uint64_t hash);
// Returns the first offset, from `from` on, of a record with this tag whose head has the right
// hash; the size of the archive if there is none.
uint64_t FindRecord(ByteSpan archive, uint64_t from, uint32_t tag);

// Returns a source or index record, whose payload may be compressed.
Bytes TableRecord(RecordType type, uint32_t tag, ByteSpan table);
// Throws as Payload does, kBadField, kUnsupportedVersion, kBadPayload, and kLimit if the table has
// more than `max_bytes`.
Bytes ReadTable(ByteSpan archive, const Record& record, uint64_t max_bytes);

void AppendHead(const ChunkHead& head, ByteWriter& out);
// Reads the 104 bytes of a head and the lead, which takes the rest of `reader`. Checks every rule
// that can be checked on a head alone. Throws kBadField, kUnknownDtype, kOverflow, kSizeMismatch,
// kLimit.
ChunkHead ReadHead(ByteReader& reader);

// Copy the units of a chunk from their places in the extent into the chunk's own order, and back.
void GatherChunk(const ChunkHead& head, ByteSpan extent, std::span<std::byte> raw);
void ScatterChunk(const ChunkHead& head, ByteSpan raw, std::span<std::byte> extent);
// Returns whether the decoded bytes are the extent, without any reordering.
bool IsStoredAsIs(const ChunkHead& head);

// The content of the source record.
struct SourceTable {
  bool is_folder = false;
  bool by_cells = false;  // some chunk's rows are in the order of cells
  std::vector<ArchivedFile> files;
  std::vector<std::string> empty_folders;
  std::optional<Snapshot> description;
  std::vector<FileGroup> groups;
  std::vector<ReferenceName> references;
  std::optional<ProfileName> profile;

  bool has_attributes() const;
  std::vector<std::array<bool, 2>> holds_tensor;  // per layer: K, V
};
Bytes EncodeTable(const SourceTable& table);
// Throws kTruncated, kTrailingBytes, kBadField, kUnsafeName, kDuplicateName, kLimit.
SourceTable DecodeTable(ByteSpan bytes);
SourceTable TableOf(const Source& source, const Snapshot* snapshot,
                    const std::vector<Region>& regions);

// Cuts files, or groups of files, into chunks, in the order of file, offset and token. The heads it
// returns lack hashes and codec, and their leads the bytes.
class Planner {
 public:
  // sizes: of the files; that of a group stands at its first one, and 0 at the others. `effort`
  // decides the order of units: kCompat codes head after head, as the engine does; the other levels
  // want all channels of a token together.
  Planner(std::vector<uint64_t> sizes, const std::vector<Region>& regions, uint64_t chunk_bytes,
          Effort effort);
  std::optional<ChunkHead> Next();

 private:
  // Plans the next stretch of at most `size` bytes that no tensor explains. `dtype` is the type of
  // their elements.
  void PlanOpaque(uint64_t size, DType dtype);
  void PlanRegion(const Region& region);

  const std::vector<uint64_t> sizes_;
  const std::vector<Region>& regions_;
  uint64_t chunk_bytes_;
  Effort effort_;
  size_t file_ = 0, region_ = 0;
  uint64_t position_ = 0;         // everything in the file before this is planned
  std::vector<ChunkHead> ready_;  // chunks of the current stretch
  size_t taken_ = 0;
};

}  // namespace kv::kvz
