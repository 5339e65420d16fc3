// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

#include "lib/core/archive/archive.h"
#include "lib/core/base/bytes.h"

// The bytes of an archive: header, records, heads, trailer. FORMAT.md has the tables.
namespace kv::kvz {

constexpr uint32_t kVersion = 1;
constexpr uint64_t kHeaderBytes = 24, kTrailerBytes = 40;
constexpr uint64_t kPrefixBytes = 32, kHeadHashBytes = 8, kChunkHeadBytes = 104;
constexpr uint64_t kTableHeadBytes = 16, kMaxHeadBytes = 256;
// Gaps up to this size, a row header say, travel in the head of the chunk that follows.
constexpr uint64_t kMaxLeadBytes = 128;
constexpr uint64_t kMaxChunkBytes = 16 << 20;
constexpr uint64_t kMaxExtentBytes = 64 << 20;

// Stored in archives: the values are never changed, never reused.
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
// What ties records to their archive, so that a search through a damaged one does not take up those
// of another archive inside a payload.
uint32_t TagOf(ByteSpan source_table);
// Everything up to the payload, ready to be followed by it.
Bytes RecordStart(RecordType type, uint32_t tag, ByteSpan head, uint64_t payload_bytes,
                  uint64_t payload_hash);
// Reads and checks a record up to its payload, which may reach past the end of the archive. Throws
// kTruncated, kBadMagic, kChecksum, kBadField.
Record ReadRecord(ByteSpan archive, uint64_t offset);
// The payload, its hash checked. Throws kTruncated, kChecksum.
ByteSpan Payload(ByteSpan archive, uint64_t offset, uint64_t bytes, uint64_t hash);
// The first offset from `from` on where a record with this tag holds its head's hash, or the
// archive's size.
uint64_t FindRecord(ByteSpan archive, uint64_t from, uint32_t tag);

// Source and index record: a payload that may be compressed.
Bytes TableRecord(RecordType type, uint32_t tag, ByteSpan table);
// Throws as Payload, kBadField, kUnsupportedVersion, kBadPayload, kLimit past `max_bytes`.
Bytes ReadTable(ByteSpan archive, const Record& record, uint64_t max_bytes);

void AppendHead(const ChunkHead& head, ByteWriter& out);
// Reads 104 bytes, the lead after them to the end, and checks every rule that needs nothing else.
// Throws kBadField, kUnknownDtype, kOverflow, kSizeMismatch, kLimit.
ChunkHead ReadHead(ByteReader& reader);

// Copies the units of a chunk from their places in the extent into the chunk's own order, and back.
void GatherChunk(const ChunkHead& head, ByteSpan extent, std::span<std::byte> raw);
void ScatterChunk(const ChunkHead& head, ByteSpan raw, std::span<std::byte> extent);
// Whether the decoded bytes are the extent.
bool IsStoredAsIs(const ChunkHead& head);

// What the source record says.
struct SourceTable {
  bool is_folder = false;
  std::vector<ArchivedFile> files;
  std::vector<std::string> empty_folders;
  std::optional<Snapshot> description;

  bool has_attributes() const;
  std::vector<std::array<bool, 2>> holds_tensor;  // per layer: K, V
};
Bytes EncodeTable(const SourceTable& table);
// Throws kTruncated, kTrailingBytes, kBadField, kUnsafeName, kDuplicateName, kLimit.
SourceTable DecodeTable(ByteSpan bytes);
SourceTable TableOf(const Source& source, const Snapshot* snapshot,
                    const std::vector<Region>& regions);

// Cuts a source into chunks, in the order of file, offset, token. Heads come without hashes and
// codec.
class Planner {
 public:
  // `effort` decides on the order of units: the engine codes head after head, the levels above it
  // want all channels of a token together.
  Planner(const Source& source, const std::vector<Region>& regions, uint64_t chunk_bytes,
          Effort effort);
  std::optional<ChunkHead> Next();

 private:
  // The next stretch of at most `size` bytes that no tensor explains; `dtype` says what elements
  // they are.
  void PlanOpaque(uint64_t size, DType dtype);
  void PlanRegion(const Region& region);

  const Source& source_;
  const std::vector<Region>& regions_;
  uint64_t chunk_bytes_;
  Effort effort_;
  size_t file_ = 0, region_ = 0;
  uint64_t position_ = 0;         // in the file: everything before is planned
  std::vector<ChunkHead> ready_;  // of the current stretch
  size_t taken_ = 0;
};

}  // namespace kv::kvz
