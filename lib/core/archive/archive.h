// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/core/base/file.h"
#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/select.h"
#include "lib/core/snapshot/snapshot.h"

// The .kvz archive (FORMAT.md): writing one, opening one however damaged, restoring its source.
// Nothing here knows a snapshot format: sources come as files and regions, snapshots as neutral
// types.
namespace kv {

// Stored in archives: the values are never changed, never reused.
enum class ChunkKind : uint8_t { kOpaque = 0, kKey = 1, kValue = 2 };

// What one chunk is and where its bytes go: the head of its record. FORMAT.md has the meaning of
// each field.
struct ChunkHead {
  uint32_t file = 0;
  uint32_t layer = 0;
  ChunkKind kind = ChunkKind::kOpaque;
  uint8_t codec = 0;  // a CodecId, or one this program does not know
  DType dtype = DType::kU8;
  Order order = Order::kStorage, source_order = Order::kStorage;
  bool heads_known = false;
  uint64_t token_begin = 0, tokens = 0;
  uint32_t head_begin = 0, heads = 0;
  uint32_t unit_begin = 0, units = 0, unit_bytes = 0;
  uint32_t codec_parameter = 0;
  uint64_t raw_bytes = 0, raw_hash = 0;
  uint64_t source_offset = 0, extent_bytes = 0;
  uint64_t extent_tokens = 0, extent_token_begin = 0;
  Bytes lead;  // the few bytes of the source between the extent before and this one

  uint64_t source_begin() const { return source_offset - lead.size(); }
  // Several chunks fill one extent: a transposed V.
  bool shares_extent() const { return source_order == Order::kHeadDimToken; }
  ChunkShape shape() const { return {dtype, tokens, heads, units, order}; }
  bool operator==(const ChunkHead&) const = default;
};

// "layer 3 K tokens 0:512", with heads and channels where a chunk has a part of them only.
std::string Describe(const ChunkHead& head);

struct ArchivedFile {
  std::string name;  // empty for the only file of a source that is no folder
  uint64_t size = 0;
  std::optional<uint64_t> hash;  // known with the index
  bool executable = false;
};

struct ArchivedChunk {
  ChunkHead head;
  uint64_t record_offset = 0, payload_offset = 0, payload_bytes = 0, payload_hash = 0;

  uint64_t record_end() const { return payload_offset + payload_bytes; }
};

// Something wrong with an archive. `chunk` is set where it has a name.
struct Damage {
  std::string part;  // "header", "source record", "index", "trailer", "chunk", "restored source"
  std::string text;
  Finding finding = Finding::kChecksum;
  uint64_t offset = 0;  // in the archive
  std::optional<ChunkHead> chunk;

  Error AsError() const;
};

// A range of the source that cannot be restored. Of a transposed V the range is cut into `runs` of
// run_bytes each, run_step apart.
struct LostRange {
  uint32_t file = 0;
  uint64_t offset = 0, run_bytes = 0, runs = 1, run_step = 0;
  std::optional<ChunkHead> chunk;

  uint64_t bytes() const { return run_bytes * runs; }
  uint64_t end() const { return offset + run_step * (runs - 1) + run_bytes; }
};

class Archive {
 public:
  // Finds the index, or walks the records if there is none; what is damaged is in damage(). Throws
  // kBadMagic for something else than an archive, kUnsupportedVersion, kTruncated or kChecksum when
  // not even the source table can be read, and kBadField and the like for a malformed archive.
  static Archive Open(std::shared_ptr<const FileSource> data);

  const FileSource& data() const { return *data_; }
  bool is_folder() const { return is_folder_; }
  const std::vector<ArchivedFile>& files() const { return files_; }
  const std::vector<std::string>& empty_folders() const { return empty_folders_; }
  // In the order of file, source offset, first token.
  const std::vector<ArchivedChunk>& chunks() const { return chunks_; }
  const std::vector<Damage>& damage() const { return damage_; }
  bool has_index() const { return index_offset_.has_value(); }
  std::optional<uint64_t> source_hash() const { return source_hash_; }
  uint64_t source_bytes() const;
  uint64_t stored_bytes(ChunkKind kind) const;  // payloads
  uint64_t raw_bytes(ChunkKind kind) const;

  // The snapshot as its reader described it, without bytes: every tensor is one piece at null.
  const std::optional<Snapshot>& description() const { return description_; }
  // Whether all values of a layer's K or V lie in chunks of their own.
  bool HoldsTensor(size_t layer_position, bool is_value) const;

  // Reads every record's own copy of its head and looks for bytes that belong to none: what a
  // reader with an index has no need of, and a careful one wants to know.
  std::vector<Damage> CheckRecords() const;

  // The same, and every payload against its hash: all that can be said without decoding.
  std::vector<Damage> CheckStored(ThreadPool& pool) const;

  // Of tensors held in chunks: layers and tokens no chunk is there for. Only an archive without its
  // index can lack any.
  std::vector<ChunkHead> MissingTokens() const;

  // The chunk that holds a byte of the source, or null.
  const ArchivedChunk* FindChunk(uint32_t file, uint64_t offset) const;

  // Decodes one chunk and checks both hashes. `raw` is resized.
  void Decode(const ArchivedChunk& chunk, CodecScratch& scratch, Bytes& raw) const;

 private:
  friend class ArchiveReader;

  std::shared_ptr<const FileSource> data_;
  bool is_folder_ = false;
  std::vector<ArchivedFile> files_;
  std::vector<std::string> empty_folders_;
  std::vector<ArchivedChunk> chunks_;
  std::vector<Damage> damage_;
  std::optional<uint64_t> index_offset_, source_hash_;
  uint64_t index_end_ = 0;
  std::optional<Snapshot> description_;
  std::vector<std::array<bool, 2>> holds_tensor_;
};

struct WriteOptions {
  // 1 MiB; four at high and max, which look for rows that come back.
  std::optional<uint64_t> chunk_bytes;
  Effort effort = Effort::kDefault;
  bool check = true;  // decode each chunk after encoding and compare it with the source
  Progress* progress = nullptr;
};

// What writing an archive came to.
struct WriteSummary {
  struct Part {
    uint64_t raw_bytes = 0, stored_bytes = 0, chunks = 0;
  };
  uint64_t source_bytes = 0, archive_bytes = 0, source_hash = 0;
  std::array<Part, 3> parts;                // by ChunkKind
  std::map<std::string, uint64_t> codecs;   // chunks by codec name
  std::map<std::string, uint64_t> choices;  // planes by "predictor+backend"
  bool checked = false;
};

// Writes the archive of a source in one pass and bounded memory. `snapshot`, if any, is what a
// reader made of the source: its regions become K and V chunks, all other bytes are opaque. The
// archive's bytes depend on nothing but source, snapshot, chunk_bytes and effort.
WriteSummary WriteArchive(const Source& source, const Snapshot* snapshot,
                          const WriteOptions& options, ThreadPool& pool, Sink& out);

// Where restored files go, in order; Begin and End are called for each.
class RestoreTarget {
 public:
  virtual ~RestoreTarget() = default;
  virtual Sink& Begin(size_t file) = 0;
  virtual void End(size_t file) = 0;
};

struct RestoreOptions {
  bool keep_going = false;  // zeros for what is lost; without it the first damage throws
  Progress* progress = nullptr;
};

struct RestoreReport {
  uint64_t bytes = 0, lost_bytes = 0;
  // Of what was restored; none where so much is lost that hashing its zeros would be most of the
  // work.
  std::optional<uint64_t> source_hash;
  std::vector<Damage> damage;   // of the archive and of chunks
  std::vector<LostRange> lost;  // what became zeros

  bool intact() const { return damage.empty() && lost.empty(); }
};

// Restores the source in order, in bounded memory.
RestoreReport Restore(const Archive& archive, const RestoreOptions& options, ThreadPool& pool,
                      RestoreTarget& target);

// Compares what is restored with another source, byte for byte, but for what is lost. Both must
// outlive it.
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
  // One per chunk with a differing byte, and one per file that is missing or of another length.
  const std::vector<Difference>& differences() const { return differences_; }

 private:
  void Write(ByteSpan bytes) override;
  void Skip(uint64_t count) override { position_ += count; }
  void CompareFolders();
  void Compare(ByteSpan bytes);
  void Mismatch(uint64_t offset);

  const Archive& archive_;
  const Source& source_;
  const FileSource* other_ = nullptr;  // the same file of the source
  size_t file_ = 0;
  uint64_t position_ = 0;
  std::vector<Difference> differences_;
  std::set<const ArchivedChunk*> different_;
};

// The tensors of an archive as a snapshot: what `wanted` covers is decoded into an unnamed
// temporary file, nothing else is read. All layers and tokens are there, for Select to cut; values
// outside `wanted` are null or zero, K or V that it leaves out are gone. Throws kUnsupportedKind
// when the archive's source was not readable as a snapshot, kUnsupportedLayout when a wanted tensor
// is not in chunks of its own.
Snapshot LoadTensors(const Archive& archive, const Selection& wanted, ThreadPool& pool,
                     Progress* progress = nullptr);

}  // namespace kv
