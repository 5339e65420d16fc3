// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by records.cc, table.cc

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/archive/groups.h"
#include "lib/core/archive/reference.h"
#include "lib/core/base/hash.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/codec/profiled/profile.h"
#include "lib/core/codec/rotation.h"

// Serialises the parts of an archive: header, records, their headers and trailer. FORMAT.md has
// their tables. table.cc implements the source table, records.cc the rest.
namespace kv {

// The values are stored in archives: never changed, never reused.
enum class ChunkKind : uint8_t { kOpaque = 0, kKey = 1, kValue = 2 };

// Header of a chunk's record: what the chunk is and where its bytes go. FORMAT.md explains fields.
struct ChunkHead {
  uint32_t file = 0;
  uint32_t layer = 0;
  ChunkKind kind = ChunkKind::kOpaque;
  uint8_t codec = 0;  // a CodecId, or an id that this program does not know
  DType dtype = DType::kU8;
  Order order = Order::kStorage, source_order = Order::kStorage;
  bool heads_known = false;
  bool by_cells = false;  // rows are coded by sequence and position
  uint64_t token_begin = 0, tokens = 0;
  uint32_t head_begin = 0, heads = 0;
  uint32_t unit_begin = 0, units = 0, unit_bytes = 0;
  uint32_t codec_parameter = 0;
  uint64_t raw_bytes = 0, raw_hash = 0;
  uint64_t source_offset = 0, extent_bytes = 0;
  uint64_t extent_tokens = 0, extent_token_begin = 0;
  Bytes lead;  // source bytes between the previous extent and this one; they are few

  uint64_t source_begin() const { return source_offset - lead.size(); }
  // Returns true if several chunks fill one extent, as those of a transposed V do.
  bool shares_extent() const { return source_order == Order::kHeadDimToken; }
  bool is_transformed() const { return codec == static_cast<uint8_t>(CodecId::kTransformed); }
  ChunkShape shape() const { return {dtype, tokens, heads, units, order}; }
  bool operator==(const ChunkHead&) const = default;
};

// Returns "layer 3 K tokens 0:512", with heads and channels if the chunk has only some of them.
std::string Describe(const ChunkHead& head);

// Difference of approximated values from the original ones, over the approximated values alone.
struct Loss {
  double relative = 0;  // root of sum (approximated - original)^2 / sum original^2
  double largest = 0;   // largest absolute difference

  bool operator==(const Loss&) const = default;
};

// An archive whose values a learnt transform approximates, as its source table describes it: it
// restores the approximated state, byte for byte, and never the original.
struct Approximation {
  std::string file;                   // name of the transform without folders; empty if unknown
  std::string model;                  // model, as the transform states it
  Hash128Bytes hash{};                // hash at the end of the transform's file
  double ratio = 1;                   // requested ratio of 16-bit values to coefficients
  uint32_t sinks = 0, window = 0;     // first and last tokens that are exact
  uint64_t source_hash = 0;           // hash of the original; the index has the restored hash
  std::optional<double> expected_kl;  // nats of a next token; needs a transform's weights
  std::vector<Rotation> rotations;
  struct Layer {
    uint32_t number = 0;
    uint32_t rotation = 0;  // place of its keys' rotation
    Loss k, v;

    bool operator==(const Layer&) const = default;
  };
  std::vector<Layer> layers;  // in the order of the transform's layers

  Loss WorstLoss(bool is_value) const;  // of all layers
};

// Identifies the profile that chunks of an archive need.
struct ProfileName {
  std::string file;   // name without folders; empty if unknown
  std::string model;  // model, as the profile states it
  Hash128Bytes hash{};
  bool embedded = false;  // the archive's second record holds the file

  bool operator==(const ProfileName&) const = default;
};

struct ArchivedFile {
  std::string name;  // empty if the archive restores a single file
  uint64_t size = 0;
  std::optional<uint64_t> hash;  // known if the index could be read
  bool executable = false;
};

namespace kvz {

constexpr uint32_t kVersion = 1;
constexpr uint64_t kHeaderBytes = 24, kTrailerBytes = 40;
constexpr uint64_t kPrefixBytes = 32, kHeadHashBytes = 8, kChunkHeadBytes = 104;
constexpr uint64_t kTableHeadBytes = 16, kMaxHeadBytes = 256;
// Gaps of up to this size, such as a row header, are stored in the following chunk's header.
constexpr uint64_t kMaxLeadBytes = 128;
constexpr uint64_t kMaxChunkBytes = 16 << 20;
constexpr uint64_t kMaxExtentBytes = 64 << 20;
// Bytes that the system reads along with a record's header (read-ahead of a page fault).
constexpr uint64_t kFaultWindow = 128 << 10;

// The values are stored in archives: never changed, never reused.
enum class RecordType : uint32_t { kSource = 1, kChunk = 2, kIndex = 3, kProfile = 4 };

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
// does not accept records of another archive inside a payload.
uint32_t ReadTag(ByteSpan source_table);
// Returns everything before the payload.
Bytes RecordStart(RecordType type, uint32_t tag, ByteSpan head, uint64_t payload_bytes,
                  uint64_t payload_hash);
// Reads and checks a record without its payload, which may reach past the end of the archive.
// Throws kTruncated, kBadMagic, kChecksum, kBadField.
Record ReadRecord(ByteSpan archive, uint64_t offset);
// Returns the payload after checking its hash. Throws kTruncated, kChecksum.
ByteSpan Payload(ByteSpan archive, uint64_t offset, uint64_t bytes, uint64_t hash);
// Returns the first offset, from `from` on, of a record with this tag whose header has the right
// hash; the size of the archive if there is none.
uint64_t FindRecord(ByteSpan archive, uint64_t from, uint32_t tag);

// Returns a source, index or profile record, whose payload may be compressed.
Bytes TableRecord(RecordType type, uint32_t tag, ByteSpan table);
// Returns the decompressed payload. Throws what Payload throws does, and kBadField,
// kUnsupportedVersion, kBadPayload, and kLimit if the table has more than `max_bytes`.
Bytes ReadTable(ByteSpan archive, const Record& record, uint64_t max_bytes);

// Throws kBadField for a value above the last one.
template <typename E>
E ReadEnum(ByteReader& in, uint8_t last, std::string_view field) {
  const uint8_t value = in.U8(field);
  if (value > last) {
    throw Error(Finding::kBadField, "{} {}: at most {} expected", field, value, last)
        .At(in.offset() - 1);
  }
  return static_cast<E>(value);
}

void AppendHead(const ChunkHead& head, ByteWriter& out);
// Reads the 104 bytes of a header and the lead, which takes the rest of `reader`. Checks every rule
// that can be checked on a header alone. Throws kBadField, kUnknownDtype, kOverflow, kSizeMismatch,
// kLimit.
ChunkHead ReadHead(ByteReader& reader);

// Copy the units of a chunk from their places in the extent into the chunk's own order, and back.
void GatherChunk(const ChunkHead& head, ByteSpan extent, std::span<std::byte> raw);
void ScatterChunk(const ChunkHead& head, ByteSpan raw, std::span<std::byte> extent);
// Returns true if the decoded bytes equal the extent without any reordering.
bool IsStoredAsIs(const ChunkHead& head);

// The content of the source record.
struct SourceTable {
  bool is_folder = false;
  bool by_cells = false;  // rows of some chunk are in the order of cells
  std::vector<ArchivedFile> files;
  std::vector<std::string> empty_folders;
  std::optional<Snapshot> description;
  std::vector<FileGroup> groups;
  std::vector<ReferenceName> references;
  std::optional<ProfileName> profile;
  std::optional<Approximation> approximation;

  bool has_attributes() const;
  std::vector<std::array<bool, 2>> holds_tensor;  // per layer: K, V
};
Bytes EncodeTable(const SourceTable& table);
// Throws kTruncated, kTrailingBytes, kBadField, kUnsafeName, kDuplicateName, kLimit.
SourceTable DecodeTable(ByteSpan bytes);
SourceTable DescribeSource(const Source& source, const Snapshot* snapshot,
                           const std::vector<Region>& regions);

}  // namespace kvz
}  // namespace kv
