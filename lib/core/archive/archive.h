// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by archive.cc, reader.cc, restore.cc, tensors.cc, writer.cc

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/core/archive/records.h"
#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/snapshot/select.h"

// The .kvz archive (FORMAT.md): writing an archive, opening one however damaged, restoring its
// source. No code here depends on a snapshot format: sources come as files and regions, snapshots
// as neutral types. writer.cc writes, reader.cc implements Archive::Open, archive.cc the rest of
// Archive, restore.cc Restore and SourceComparer, tensors.cc LoadTensors.
namespace kv {

struct ArchiveNeighbours;  // neighbours.h
class RowOrders;           // coded_rows.h
class ArchiveTransform;    // transformed_chunks.h
struct TransformedChunks;
struct RowOrder;

struct ArchivedChunk {
  ChunkHead head;
  uint64_t record_offset = 0, payload_offset = 0, payload_bytes = 0, payload_hash = 0;

  uint64_t record_end() const { return payload_offset + payload_bytes; }
};

// A fault of an archive. `chunk` is set if it concerns a known chunk.
struct Damage {
  std::string part;  // "header", "source record", "index", "trailer", "chunk", "restored source"
  std::string text;
  Finding finding = Finding::kChecksum;
  uint64_t offset = 0;  // byte offset in the archive
  std::optional<ChunkHead> chunk;

  Error AsError() const;
  std::string Place() const;  // returns "layer 3 K tokens 0:512", or the part
};

// A range of the source that cannot be restored. In a transposed V it consists of `runs` pieces of
// run_bytes each, which begin run_step apart.
struct LostRange {
  uint32_t file = 0;
  uint64_t offset = 0, run_bytes = 0, runs = 1, run_step = 0;
  std::optional<ChunkHead> chunk;

  uint64_t bytes() const { return run_bytes * runs; }
  uint64_t end() const { return offset + run_step * (runs - 1) + run_bytes; }
};

class Archive {
 public:
  // Reads the index, or walks the records if there is none. damage() lists the damage found. Throws
  // kBadMagic if the data is not an archive, kUnsupportedVersion, kTruncated or kChecksum if even
  // the source table cannot be read, and kBadField and similar findings if the archive is
  // malformed.
  static Archive Open(std::shared_ptr<const FileSource> data);

  const FileSource& data() const { return *data_; }
  bool is_folder() const { return is_folder_; }
  const std::vector<ArchivedFile>& files() const { return files_; }
  const std::vector<std::string>& empty_folders() const { return empty_folders_; }
  // Files that were joined. Their chunks have the first file's number; offsets are into the joined
  // bytes of the group.
  const std::vector<FileGroup>& groups() const { return groups_; }
  // Returns the group that this file belongs to, or nullptr.
  const FileGroup* FindGroup(uint32_t file) const;
  const GroupLayout& FindLayout(const FileGroup& group) const;
  // Sorted by file, source offset and first token.
  const std::vector<ArchivedChunk>& chunks() const { return chunks_; }
  const std::vector<Damage>& damage() const { return damage_; }
  bool has_index() const { return index_offset_.has_value(); }
  std::optional<uint64_t> source_hash() const { return source_hash_; }
  uint64_t source_bytes() const;
  uint64_t stored_bytes(ChunkKind kind) const;  // bytes of payloads
  uint64_t raw_bytes(ChunkKind kind) const;

  // The snapshot as its reader described it, without bytes: every tensor is one piece at nullptr.
  const std::optional<Snapshot>& description() const { return description_; }
  // The caches that chunks refer to, by the names in the archive.
  const std::vector<ReferenceName>& reference_names() const { return reference_names_; }
  // Returns the runs of references that a chunk needs; empty if it needs none. Throws what
  // DecodeChunk throws.
  std::vector<ReferenceRun> ListRuns(const ArchivedChunk& chunk) const;
  // Sets the references, in the order of reference_names(), before anything is decoded.
  void UseReferences(References references) { references_ = std::move(references); }
  const References& references() const { return references_; }
  // The profile that chunks may need, by its name in the archive.
  const std::optional<ProfileName>& profile_name() const { return profile_name_; }
  // Returns the number of chunks that decode only with the profile.
  uint64_t profiled_chunks() const;
  // Reads the profile that the archive itself holds (profile_name()->embedded). Throws what
  // Profile::Read throws, kInconsistent if it is another one, and kChecksum, kTruncated and others
  // for a damaged record.
  std::shared_ptr<const Profile> ReadEmbeddedProfile() const;
  // Returns the number of chunks whose rows are coded by sequence and position.
  uint64_t ordered_chunks() const;
  // Set the profile, or the reason why it is unavailable, before anything is decoded.
  void UseProfile(std::shared_ptr<const Profile> profile) { profile_ = std::move(profile); }
  void MissProfile(Error why) { profile_missing_ = std::move(why); }
  // Throws the reason given to MissProfile if chunks need the profile.
  void RequireProfile() const;
  // Tells how the restored values differ from the original ones; nothing for exact archives.
  const std::optional<Approximation>& approximation() const { return approximation_; }
  // Returns the number of chunks that decode only with the transform.
  uint64_t transformed_chunks() const;
  // Set the transform, or the reason why it is unavailable, before anything is decoded.
  void UseTransform(std::shared_ptr<const ArchiveTransform> transform) {
    transform_ = std::move(transform);
  }
  void MissTransform(Error why) { transform_missing_ = std::move(why); }
  // Throws the reason given to MissTransform if chunks need the transform.
  void RequireTransform() const;

  // Returns true if all values of a layer's K or V lie in chunks of their own.
  bool HoldsTensor(size_t layer_position, bool is_value) const;

  // Reads every record's own copy of its header and looks for bytes that belong to no record. A
  // reader that has the index does not need this; `verify` does it.
  std::vector<Damage> CheckRecords() const;

  // Runs CheckRecords and checks every payload against its hash, which is all that can be checked
  // without decoding.
  std::vector<Damage> CheckStored(ThreadPool& pool) const;

  // Returns the layers and tokens of chunked tensors that no chunk holds. Only an archive that lost
  // its index can lack any.
  std::vector<ChunkHead> MissingTokens() const;

  // Returns the chunk that holds a byte of the source, or nullptr.
  const ArchivedChunk* FindChunk(uint32_t file, uint64_t offset) const;

  // Returns all chunks that a chunk is predicted from, directly or not, in an order in which they
  // can be decoded; empty for most chunks. Calls `bring` with each, and with the chunk itself,
  // before reading its payload. Throws what DecodeChunk throws, and kLostChunk if one is missing.
  std::vector<size_t> NeededBy(const ArchivedChunk& chunk,
                               const std::function<void(const ArchivedChunk&)>& bring = {}) const;

  // Decodes one chunk into `raw`, which is resized, and checks both hashes. Also decodes the chunks
  // that it needs, unless they are in the cache.
  void Decode(const ArchivedChunk& chunk, CodecScratch& scratch, Bytes& raw) const;
  // Decodes into memory of exactly the chunk's size.
  void Decode(const ArchivedChunk& chunk, CodecScratch& scratch, std::span<std::byte> raw) const;
  // Returns runs without checking the payload's hash; the caller compares the rows, which finds
  // damage.
  std::vector<ReferenceRun> ReadRunsUnchecked(const ArchivedChunk& chunk) const;
  // Decodes only the rows of a chunk that belong to no run, into memory of their size. Every run
  // must repeat its reference rows exactly. Checks only the payload's hash.
  void DecodeOwnRows(const ArchivedChunk& chunk, CodecScratch& scratch,
                     std::span<std::byte> rows) const;

 private:
  friend class ArchiveReader;
  class NeighbourRows;

  // Returns the order of a chunk's rows; nullptr if they are as in the source. Throws
  // kInconsistent.
  std::shared_ptr<const RowOrder> FindOrder(const ChunkHead& head) const;
  std::optional<size_t> FindNeighbour(const ChunkHead& head, const Neighbour& neighbour) const;
  // Returns the place of the chunk that holds a transformed chunk's coefficients.
  size_t FindCoefficients(const ArchivedChunk& chunk) const;
  void DecodeTransformed(const ArchivedChunk& chunk, ByteSpan payload,
                         std::span<std::byte> raw) const;
  std::optional<size_t> PlaceAmongNeighbours(const ArchivedChunk& chunk) const;
  std::shared_ptr<const Bytes> DecodeWithNeighbours(size_t place, CodecScratch& scratch) const;
  void DecodeBy(const ArchivedChunk& chunk, const NeighbourSource* neighbours,
                CodecScratch& scratch, Bytes& raw) const;
  ByteSpan ReadPayload(const ArchivedChunk& chunk) const;
  void DecodePayload(const ArchivedChunk& chunk, ByteSpan payload,
                     const NeighbourSource* neighbours, CodecScratch& scratch,
                     std::span<std::byte> raw) const;
  std::shared_ptr<const FileSource> data_;
  bool is_folder_ = false;
  std::vector<ArchivedFile> files_;
  std::vector<std::string> empty_folders_;
  std::vector<FileGroup> groups_;
  struct Place {  // place of a file in a group
    uint32_t group = 0, place = 0;
  };
  std::map<uint32_t, Place> grouped_;  // by file number
  std::vector<GroupLayout> layouts_;
  std::vector<ArchivedChunk> chunks_;
  std::vector<Damage> damage_;
  std::optional<uint64_t> index_offset_, source_hash_;
  std::optional<Snapshot> description_;
  std::vector<std::array<bool, 2>> holds_tensor_;
  std::vector<ReferenceName> reference_names_;
  References references_;
  std::optional<ProfileName> profile_name_;
  std::shared_ptr<const Profile> profile_;
  std::optional<Error> profile_missing_;
  std::optional<Approximation> approximation_;
  std::shared_ptr<const ArchiveTransform> transform_;
  std::optional<Error> transform_missing_;
  std::shared_ptr<ArchiveNeighbours> neighbours_;
  std::shared_ptr<const RowOrders> orders_;  // nullptr if no chunk's rows are reordered
};

// Default and largest number of consecutive layers that form a set at level max. Each layer of a
// set may be predicted from those before it.
constexpr uint32_t kJoinedLayers = 8, kMostJoinedLayers = 16;
// Number of layers in a set that a profile's regressions join; chunks then have depths up to 63.
constexpr uint32_t kMostJoinedByProfile = 32;

struct WriteOptions {
  // Default: 1 MiB, or 4 MiB at levels high and max, which search for similar rows.
  std::optional<uint64_t> chunk_bytes;
  Effort effort = Effort::kDefault;
  // Caches whose rows may predict rows of the source; the archive then needs the caches it uses.
  References references;
  // Profile whose tables short chunks reuse, and the name of its file. Used at levels above fast;
  // the archive depends on it if it made any chunk smaller.
  std::shared_ptr<const Profile> profile;
  std::string profile_file;
  bool embeds_profile = false;  // the archive holds the profile, and needs no other file
  // Chunks that a transform approximated; the source then holds the approximated values. Cannot be
  // combined with references, `profile` or `solid`.
  std::shared_ptr<const TransformedChunks> transformed;
  // At level max, this many layers in a row may be predicted from those before them: smaller, but
  // decoding one requires decoding those. Only for sources that are complete from the start.
  uint32_t joined_layers = 1;
  // Joins the small files of a folder, so that chunks span them.
  bool solid = true;
  bool check = true;  // decodes each encoded chunk and compares it with the source
  Progress* progress = nullptr;
};

// The result of writing an archive.
struct WriteSummary {
  struct Part {
    uint64_t raw_bytes = 0, stored_bytes = 0, chunks = 0;
  };
  uint64_t source_bytes = 0, archive_bytes = 0, source_hash = 0;
  std::array<Part, 3> parts;                // by ChunkKind
  std::map<std::string, uint64_t> codecs;   // chunks by codec name
  std::map<std::string, uint64_t> choices;  // planes by "predictor+backend"
  // Counts the chunks and rows that one reference predicts.
  struct Reference {
    ReferenceName name;
    uint64_t chunks = 0, rows = 0, equal_rows = 0;
  };
  std::vector<Reference> references;
  uint64_t grouped_files = 0, groups = 0;
  uint64_t ordered_chunks = 0;  // chunks whose rows are coded by sequence and position
  bool checked = false;
};

// Writes the archive of a source in one pass and in bounded memory. `snapshot`, if given, is the
// source as read by a format: its regions become K and V chunks, and all other bytes are opaque.
// The bytes of the archive depend only on source, snapshot and options, not on threads.
WriteSummary WriteArchive(const Source& source, const Snapshot* snapshot,
                          const WriteOptions& options, ThreadPool& pool, Sink& out);

// Writes an archive while its source grows, from the first byte to the last. The snapshot's views
// and the names and sizes of the files are fixed from the start; the bytes may arrive later.
// Source, sink and snapshot must outlive the writer.
class ArchiveWriter {
 public:
  // Writes everything before the first chunk.
  ArchiveWriter(const Source& source, const Snapshot* snapshot, const WriteOptions& options,
                Sink& out);
  ~ArchiveWriter();
  ArchiveWriter(const ArchiveWriter&) = delete;
  ArchiveWriter& operator=(const ArchiveWriter&) = delete;

  // Writes the chunks that end at or before `end` of a file. Returns the offset in that file from
  // which on bytes are still needed.
  uint64_t Advance(uint32_t file, uint64_t end, ThreadPool& pool);
  // Writes the remaining chunks, the index and the trailer.
  WriteSummary Finish(ThreadPool& pool);

 private:
  class Body;
  std::unique_ptr<Body> body_;
};

// Receives the restored files in order, each with one call of Begin and one of End. The files of a
// group come together, in the place of its first one.
class RestoreTarget {
 public:
  virtual ~RestoreTarget() = default;
  virtual Sink& Begin(size_t file) = 0;
  virtual void End(size_t file) = 0;
};

// Discards the output: Restore has already hashed it.
class NoTarget : public RestoreTarget, private Sink {
 public:
  Sink& Begin(size_t) override { return *this; }
  void End(size_t) override {}

 private:
  void Write(ByteSpan) override {}
};

struct RestoreOptions {
  bool keep_going = false;  // writes zeros for lost bytes; otherwise the first damage throws
  Progress* progress = nullptr;
};

struct RestoreReport {
  uint64_t bytes = 0, lost_bytes = 0;
  // The hash of the restored bytes; nullopt if so much is lost that hashing the zeros would take
  // most of the time.
  std::optional<uint64_t> source_hash;
  std::vector<Damage> damage;   // damage to the archive and to chunks
  std::vector<LostRange> lost;  // ranges replaced by zeros

  bool intact() const { return damage.empty() && lost.empty(); }
};

// Restores the source from its first byte to its last, in bounded memory.
RestoreReport Restore(const Archive& archive, const RestoreOptions& options, ThreadPool& pool,
                      RestoreTarget& target);

// Compares the restored bytes with another source and skips lost ranges. Archive and source must
// outlive the object.
class SourceComparer : public RestoreTarget, private Sink {
 public:
  struct Difference {
    std::string file;
    std::string text;     // "first at byte 17", "is missing", "is executable"
    uint64_t offset = 0;  // offset of the first byte that differs
    std::optional<ChunkHead> chunk;
  };

  SourceComparer(const Archive& archive, const Source& source);
  Sink& Begin(size_t file) override;
  void End(size_t file) override;
  // One difference per chunk with a differing byte, and one per file that is missing or has another
  // length.
  const std::vector<Difference>& differences() const { return differences_; }

 private:
  void Write(ByteSpan bytes) override;
  void Skip(uint64_t count) override { position_ += count; }
  void CompareFolders();
  void Compare(ByteSpan bytes);
  void Mismatch(uint64_t offset);

  const Archive& archive_;
  const Source& source_;
  const FileSource* other_ = nullptr;  // the current file in `source_`
  size_t file_ = 0;
  uint64_t position_ = 0;
  std::vector<Difference> differences_;
  std::set<const ArchivedChunk*> different_;
};

// Loads the tensors of an archive as a snapshot. Decodes what `wanted` covers into an unnamed
// temporary file and reads nothing else. The snapshot has all layers and tokens, so that Select can
// cut it; values outside `wanted` are null or zero, and K or V is absent if `wanted` excludes it.
// Throws kUnsupportedKind if the archive's source could not be read as a snapshot, and
// kUnsupportedLayout if a wanted tensor does not have chunks of its own.
Snapshot LoadTensors(const Archive& archive, const Selection& wanted, ThreadPool& pool,
                     Progress* progress = nullptr);

}  // namespace kv
