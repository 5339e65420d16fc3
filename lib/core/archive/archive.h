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
// source. Nothing here knows a snapshot format: sources come as files and regions, snapshots as
// neutral types. writer.cc writes, reader.cc implements Archive::Open, archive.cc the rest of
// Archive, restore.cc Restore and SourceComparer, tensors.cc LoadTensors.
namespace kv {

struct ArchiveNeighbours;  // neighbours.h
class RowOrders;           // coded_rows.h
struct RowOrder;

struct ArchivedChunk {
  ChunkHead head;
  uint64_t record_offset = 0, payload_offset = 0, payload_bytes = 0, payload_hash = 0;

  uint64_t record_end() const { return payload_offset + payload_bytes; }
};

// Something that is wrong with an archive. `chunk` is set if it concerns a chunk that is known.
struct Damage {
  std::string part;  // "header", "source record", "index", "trailer", "chunk", "restored source"
  std::string text;
  Finding finding = Finding::kChecksum;
  uint64_t offset = 0;  // in the archive
  std::optional<ChunkHead> chunk;

  Error AsError() const;
  std::string Place() const;  // "layer 3 K tokens 0:512", or the part
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
  // Reads the index, or walks the records if there is none. damage() lists what was found damaged.
  // Throws kBadMagic if the data is no archive, kUnsupportedVersion, kTruncated or kChecksum if not
  // even the source table can be read, and kBadField and the like if the archive is malformed.
  static Archive Open(std::shared_ptr<const FileSource> data);

  const FileSource& data() const { return *data_; }
  bool is_folder() const { return is_folder_; }
  const std::vector<ArchivedFile>& files() const { return files_; }
  const std::vector<std::string>& empty_folders() const { return empty_folders_; }
  // Files that were joined; chunks of theirs have the first one's number and offsets among all of
  // the group's bytes.
  const std::vector<FileGroup>& groups() const { return groups_; }
  // The group that a chunk of this file is in, or null.
  const FileGroup* GroupOf(uint32_t file) const;
  const GroupLayout& LayoutOf(const FileGroup& group) const;
  // Sorted by file, source offset and first token.
  const std::vector<ArchivedChunk>& chunks() const { return chunks_; }
  const std::vector<Damage>& damage() const { return damage_; }
  bool has_index() const { return index_offset_.has_value(); }
  std::optional<uint64_t> source_hash() const { return source_hash_; }
  uint64_t source_bytes() const;
  uint64_t stored_bytes(ChunkKind kind) const;  // of payloads
  uint64_t raw_bytes(ChunkKind kind) const;

  // The snapshot as its reader described it, but without bytes: every tensor is one piece at null.
  const std::optional<Snapshot>& description() const { return description_; }
  // The caches that chunks refer to, as the archive names them.
  const std::vector<ReferenceName>& reference_names() const { return reference_names_; }
  // What a chunk needs of them; nothing if it needs none. Throws as DecodeChunk.
  std::vector<ReferenceRun> RunsOf(const ArchivedChunk& chunk) const;
  // Gives the references, in the order of their names, before anything is decoded.
  void UseReferences(References references) { references_ = std::move(references); }
  const References& references() const { return references_; }
  // The profile that chunks may have been coded with, as the archive names it.
  const std::optional<ProfileName>& profile_name() const { return profile_name_; }
  // How many were, and decode with it alone.
  uint64_t profiled_chunks() const;
  // How many have their rows coded by sequence and position.
  uint64_t ordered_chunks() const;
  // Gives the profile, or the reason why it is not there, before anything is decoded.
  void UseProfile(std::shared_ptr<const Profile> profile) { profile_ = std::move(profile); }
  void MissProfile(Error why) { profile_missing_ = std::move(why); }
  // Throws the reason if chunks need a profile that is not there.
  void RequireProfile() const;

  // Returns whether all values of a layer's K or V lie in chunks of their own.
  bool HoldsTensor(size_t layer_position, bool is_value) const;

  // Reads every record's own copy of its head, and looks for bytes that belong to no record. A
  // reader that has the index does not need this; one that wants to be sure does.
  std::vector<Damage> CheckRecords() const;

  // Does the same and checks every payload against its hash. More cannot be said without decoding.
  std::vector<Damage> CheckStored(ThreadPool& pool) const;

  // Returns the layers and tokens of tensors held in chunks for which there is no chunk. Only an
  // archive that lost its index can lack any.
  std::vector<ChunkHead> MissingTokens() const;

  // Returns the chunk that holds a byte of the source, or null.
  const ArchivedChunk* FindChunk(uint32_t file, uint64_t offset) const;

  // The chunks that a chunk is coded by, all of them together, those that need no others first;
  // nothing for most chunks. Calls `bring` with each, and with the chunk, before it reads any of
  // its payload. Throws as DecodeChunk, kLostChunk where one is not there.
  std::vector<size_t> NeededBy(const ArchivedChunk& chunk,
                               const std::function<void(const ArchivedChunk&)>& bring = {}) const;
  // Whether some chunk is coded by others.
  bool HasNeighbours() const;

  // Decodes one chunk into `raw`, which is resized, and checks both hashes. Decodes the chunks that
  // it needs before, unless somebody else needed them lately.
  void Decode(const ArchivedChunk& chunk, CodecScratch& scratch, Bytes& raw) const;
  // Into memory of the chunk's size.
  void Decode(const ArchivedChunk& chunk, CodecScratch& scratch, std::span<std::byte> raw) const;
  // What a chunk needs, from a payload whose hash nobody looks at: damage shows where rows differ.
  std::vector<ReferenceRun> UncheckedRunsOf(const ArchivedChunk& chunk) const;
  // Decodes those rows of a chunk that none of its runs has, into memory of their size; all of its
  // runs are equal. Only the payload's hash is checked.
  void DecodeOwnRows(const ArchivedChunk& chunk, CodecScratch& scratch,
                     std::span<std::byte> rows) const;

 private:
  friend class ArchiveReader;
  class NeighbourRows;

  // The order of a chunk's rows; null if they are as in the source. Throws kInconsistent.
  std::shared_ptr<const RowOrder> OrderOf(const ChunkHead& head) const;
  std::optional<size_t> NeighbourOf(const ChunkHead& head, const Neighbour& neighbour) const;
  std::optional<size_t> PlaceAmongNeighbours(const ArchivedChunk& chunk) const;
  std::shared_ptr<const Bytes> DecodeWithNeighbours(size_t place, CodecScratch& scratch) const;
  void DecodeBy(const ArchivedChunk& chunk, const NeighbourSource* neighbours,
                CodecScratch& scratch, Bytes& raw) const;
  ByteSpan PayloadOf(const ArchivedChunk& chunk) const;
  void DecodePayload(const ArchivedChunk& chunk, ByteSpan payload,
                     const NeighbourSource* neighbours, CodecScratch& scratch,
                     std::span<std::byte> raw) const;
  std::shared_ptr<const FileSource> data_;
  bool is_folder_ = false;
  std::vector<ArchivedFile> files_;
  std::vector<std::string> empty_folders_;
  std::vector<FileGroup> groups_;
  struct Place {  // of a file in a group
    uint32_t group = 0, place = 0;
  };
  std::map<uint32_t, Place> grouped_;  // by file
  std::vector<GroupLayout> layouts_;
  std::vector<ArchivedChunk> chunks_;
  std::vector<Damage> damage_;
  std::optional<uint64_t> index_offset_, source_hash_;
  uint64_t index_end_ = 0;
  std::optional<Snapshot> description_;
  std::vector<std::array<bool, 2>> holds_tensor_;
  std::vector<ReferenceName> reference_names_;
  References references_;
  std::optional<ProfileName> profile_name_;
  std::shared_ptr<const Profile> profile_;
  std::optional<Error> profile_missing_;
  std::shared_ptr<ArchiveNeighbours> neighbours_;
  std::shared_ptr<const RowOrders> orders_;  // null if no chunk's rows change places
};

// Layers that are coded by those before them, at level max, unless somebody wants it otherwise.
constexpr uint32_t kJoinedLayers = 8, kMostJoinedLayers = 16;

struct WriteOptions {
  // Default: 1 MiB, or 4 MiB at levels high and max, which look for rows that resemble earlier
  // ones.
  std::optional<uint64_t> chunk_bytes;
  Effort effort = Effort::kDefault;
  // Caches whose rows may stand for those of the source; the archive then needs those that it uses.
  References references;
  // What short chunks need no tables of their own for, and the name of its file. It serves levels
  // above fast; the archive needs it if it made a chunk smaller.
  std::shared_ptr<const Profile> profile;
  std::string profile_file;
  // At level max, so many layers in a row are coded by those before them: smaller, but to decode
  // one takes those before it too. For sources that are there from the start.
  uint32_t joined_layers = 1;
  // Join the small files of a folder, so that chunks span them.
  bool solid = true;
  bool check = true;  // decode each encoded chunk and compare it with the source
  Progress* progress = nullptr;
};

// The outcome of writing an archive.
struct WriteSummary {
  struct Part {
    uint64_t raw_bytes = 0, stored_bytes = 0, chunks = 0;
  };
  uint64_t source_bytes = 0, archive_bytes = 0, source_hash = 0;
  std::array<Part, 3> parts;                // by ChunkKind
  std::map<std::string, uint64_t> codecs;   // chunks by codec name
  std::map<std::string, uint64_t> choices;  // planes by "predictor+backend"
  // What the archive's chunks need of each reference that it names.
  struct Reference {
    ReferenceName name;
    uint64_t chunks = 0, rows = 0, equal_rows = 0;
  };
  std::vector<Reference> references;
  uint64_t grouped_files = 0, groups = 0;
  uint64_t ordered_chunks = 0;  // whose rows are coded by sequence and position
  bool checked = false;
};

// Writes the archive of a source in one pass and in bounded memory. `snapshot`, if given, is the
// source as read by a format: its regions become K and V chunks, and all other bytes are opaque.
// The bytes of the archive depend on source, snapshot, chunk_bytes and effort alone.
WriteSummary WriteArchive(const Source& source, const Snapshot* snapshot,
                          const WriteOptions& options, ThreadPool& pool, Sink& out);

// Writes an archive while its source becomes known, from the first byte to the last. All of it is
// there in the end: Snapshot's views and the names and sizes of the files from the start. Source,
// sink and snapshot must outlive it.
class ArchiveWriter {
 public:
  // Writes everything that precedes the chunks.
  ArchiveWriter(const Source& source, const Snapshot* snapshot, const WriteOptions& options,
                Sink& out);
  ~ArchiveWriter();
  ArchiveWriter(const ArchiveWriter&) = delete;
  ArchiveWriter& operator=(const ArchiveWriter&) = delete;

  // Writes the chunks that end at or before `end` of a file. Returns where, in that file, the bytes
  // begin that are still needed.
  uint64_t Advance(uint32_t file, uint64_t end, ThreadPool& pool);
  // Writes the rest.
  WriteSummary Finish(ThreadPool& pool);

 private:
  class Body;
  std::unique_ptr<Body> body_;
};

// Receives the restored files one after another, with one call of Begin and one of End for each: in
// their order, but those of a group where the first of them is.
class RestoreTarget {
 public:
  virtual ~RestoreTarget() = default;
  virtual Sink& Begin(size_t file) = 0;
  virtual void End(size_t file) = 0;
};

// Discards what is restored: Restore has hashed it.
class NoTarget : public RestoreTarget, private Sink {
 public:
  Sink& Begin(size_t) override { return *this; }
  void End(size_t) override {}

 private:
  void Write(ByteSpan) override {}
};

struct RestoreOptions {
  bool keep_going = false;  // write zeros for lost bytes; otherwise the first damage throws
  Progress* progress = nullptr;
};

struct RestoreReport {
  uint64_t bytes = 0, lost_bytes = 0;
  // The hash of the restored bytes. It is missing if so much is lost that hashing the zeros would
  // be most of the work.
  std::optional<uint64_t> source_hash;
  std::vector<Damage> damage;   // to the archive and to chunks
  std::vector<LostRange> lost;  // ranges that became zeros

  bool intact() const { return damage.empty() && lost.empty(); }
};

// Restores the source from its first byte to its last, in bounded memory.
RestoreReport Restore(const Archive& archive, const RestoreOptions& options, ThreadPool& pool,
                      RestoreTarget& target);

// Compares the restored bytes with another source and leaves out the lost ones. Archive and source
// must outlive it.
class SourceComparer : public RestoreTarget, private Sink {
 public:
  struct Difference {
    std::string file;
    std::string text;     // "first at byte 17", "is missing", "is executable"
    uint64_t offset = 0;  // of the first byte that differs
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
// cut it; values outside `wanted` are null or zero, and K or V is missing if `wanted` leaves it
// out. Throws kUnsupportedKind if the archive's source could not be read as a snapshot, and
// kUnsupportedLayout if a wanted tensor is not in chunks of its own.
Snapshot LoadTensors(const Archive& archive, const Selection& wanted, ThreadPool& pool,
                     Progress* progress = nullptr);

}  // namespace kv
