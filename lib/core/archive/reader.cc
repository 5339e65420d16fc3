// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

#include <algorithm>

#include "lib/core/archive/archive.h"
#include "lib/core/archive/coded_rows.h"
#include "lib/core/archive/neighbours.h"
#include "lib/core/archive/records.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/hash.h"

namespace kv {

using namespace kvz;
// Fills an Archive from its bytes.
class ArchiveReader {
 public:
  explicit ArchiveReader(Archive& archive) : a_(archive), bytes_(archive.data_->bytes()) {}

  void Run() {
    CheckStart();
    if (!ReadIndex()) Walk();
    Arrange();
  }

 private:
  void Note(std::string part, const Error& error, uint64_t offset,
            std::optional<ChunkHead> chunk = std::nullopt) {
    a_.damage_.push_back({std::move(part), error.message(), error.finding(),
                          error.offset().value_or(offset), chunk});
  }

  void CheckStart() {
    a_.data_->Need(0, kHeaderBytes);
    a_.data_->Need(bytes_.size() - std::min<uint64_t>(bytes_.size(), kTrailerBytes), kTrailerBytes);
    if (!HasMagic(bytes_) && !HasTrailerMagic(bytes_)) {
      throw Error(Finding::kBadMagic, "this is not a .kvz archive").At(0);
    }
    try {
      CheckHeader(bytes_);
    } catch (const Error& error) {
      if (error.finding() == Finding::kUnsupportedVersion ||
          error.finding() == Finding::kTruncated) {
        throw;
      }
      Note("header", error, 0);
    }
  }

  void UseTable(ByteSpan bytes) {
    SourceTable table = DecodeTable(bytes);
    tag_ = ReadTag(bytes);
    a_.is_folder_ = table.is_folder;
    a_.files_ = std::move(table.files);
    a_.empty_folders_ = std::move(table.empty_folders);
    a_.description_ = std::move(table.description);
    a_.groups_ = std::move(table.groups);
    a_.grouped_.clear();
    a_.layouts_.clear();
    for (uint32_t i = 0; i < a_.groups_.size(); ++i) {
      std::vector<uint64_t> sizes;
      for (const uint32_t file : a_.groups_[i].files) sizes.push_back(a_.files_[file].size);
      a_.layouts_.emplace_back(a_.groups_[i], std::move(sizes));
      for (uint32_t place = 0; place < a_.groups_[i].files.size(); ++place)
        a_.grouped_[a_.groups_[i].files[place]] = {i, place};
    }
    a_.reference_names_ = std::move(table.references);
    a_.profile_name_ = std::move(table.profile);
    a_.approximation_ = std::move(table.approximation);
    a_.holds_tensor_ = std::move(table.holds_tensor);
    a_.orders_.reset();
    if (table.by_cells) a_.orders_ = std::make_shared<const RowOrders>(*a_.description_);
    have_table_ = true;
  }

  // Returns false if trailer or index is damaged or missing.
  bool ReadIndex() {
    const char* part = "trailer";
    try {
      const Trailer trailer = ReadTrailer(bytes_);
      part = "index";
      a_.data_->Need(trailer.index_offset, trailer.index_bytes);
      const Record record = ReadRecord(bytes_, trailer.index_offset);
      if (record.type != static_cast<uint32_t>(RecordType::kIndex) ||
          record.end() != trailer.index_offset + trailer.index_bytes) {
        throw Error(Finding::kBadOffsets, "the trailer does not point to the index")
            .At(trailer.index_offset);
      }
      const Bytes table = ReadTable(bytes_, record, TableLimit());
      part = nullptr;
      ParseIndex(table, record);
      return true;
    } catch (Error& error) {
      // After the index hash matched, an error means a faulty writer, not damage.
      if (part == nullptr) throw error.In("index");
      if (error.code() == ErrorCode::kUnsupported) throw;
      Note(part, error, bytes_.size());
      return false;
    }
  }

  // An index entry is smaller than its record, so the size of the file bounds the index.
  uint64_t TableLimit() const { return bytes_.size() + (64 << 20); }

  void ParseIndex(const Bytes& table, const Record& record) {
    ByteReader in(table);
    const uint64_t table_bytes = in.U64("source table length");
    UseTable(in.Take(table_bytes, "source table"));
    if (tag_ != record.tag) throw Error(Finding::kInconsistent, "the tag is another source's");
    for (ArchivedFile& file : a_.files_) file.hash = in.U64("file hash");
    a_.source_hash_ = in.U64("source hash");
    const uint64_t count = in.U64("number of chunks");
    for (uint64_t i = 0; i < count; ++i) {
      ArchivedChunk chunk;
      chunk.record_offset = in.U64("record offset");
      chunk.payload_bytes = in.U64("payload length");
      chunk.payload_hash = in.U64("payload hash");
      const auto head_bytes = in.U32("header length");
      ByteReader head(in.Take(head_bytes, "chunk header"));
      chunk.head = ReadHead(head);
      chunk.payload_offset = CheckedAdd(
          chunk.record_offset, kPrefixBytes + head_bytes + kHeadHashBytes, "record offset");
      if (CheckedAdd(chunk.payload_offset, chunk.payload_bytes, "record") > record.offset) {
        throw Error(Finding::kBadOffsets, "a chunk lies outside the archive")
            .In(Describe(chunk.head))
            .At(chunk.record_offset);
      }
      // Overlapping records would let a small archive contain the same bytes a million times.
      if (!a_.chunks_.empty() && chunk.record_offset < a_.chunks_.back().record_end()) {
        throw Error(Finding::kBadOffsets, "two chunks overlap in the archive")
            .In(Describe(chunk.head))
            .At(chunk.record_offset);
      }
      a_.chunks_.push_back(std::move(chunk));
    }
    in.ExpectEnd("the index");
    a_.index_offset_ = record.offset;
  }

  void Walk() {
    const uint64_t end = bytes_.size();
    a_.data_->NeedAll();
    for (uint64_t at = kHeaderBytes; at < end && !a_.has_index();) {
      try {
        const Record record = ReadRecord(bytes_, at);
        UseRecord(record);
        a_.data_->Drop(at, kFaultWindow);
        at = std::min(record.end(), end);
      } catch (const Error& error) {
        if (!have_table_) throw;  // even the first record cannot be read
        const uint64_t next = FindRecord(bytes_, at + 1, tag_);
        const bool is_trailer = next == end && end - at == kTrailerBytes && HasTrailerMagic(bytes_);
        if (!is_trailer) Note("record", error, at);
        at = next;
      }
    }
    if (!have_table_) throw Error(Finding::kTruncated, "the archive ends before its source table");
  }

  void UseRecord(const Record& record) {
    if (!have_table_) {
      if (record.type != static_cast<uint32_t>(RecordType::kSource)) {
        throw Error(Finding::kMissingRecord, "the first record is not the source table");
      }
      UseTable(ReadTable(bytes_, record, TableLimit()));
    }
    if (record.tag != tag_) throw Error(Finding::kInconsistent, "a record of another archive");
    if (record.type == static_cast<uint32_t>(RecordType::kIndex)) {
      UseStrayIndex(record);
    } else if (record.type == static_cast<uint32_t>(RecordType::kChunk)) {
      ByteReader in(record.head, record.offset + kPrefixBytes);
      ArchivedChunk chunk;
      chunk.head = ReadHead(in);
      chunk.record_offset = record.offset;
      chunk.payload_offset = record.payload_offset;
      chunk.payload_bytes = record.payload_bytes;
      chunk.payload_hash = record.payload_hash;
      a_.chunks_.push_back(std::move(chunk));
    }
  }

  // Reached if only the trailer was damaged: the index then replaces what walking the records
  // found.
  void UseStrayIndex(const Record& record) {
    const Bytes table = ReadTable(bytes_, record, TableLimit());
    a_.chunks_.clear();
    std::erase_if(a_.damage_, [](const Damage& damage) { return damage.part == "record"; });
    ParseIndex(table, record);
  }

  // Sorts the chunks and checks that no two of them claim the same bytes.
  void Arrange() {
    const auto key = [](const ArchivedChunk& chunk) {
      return std::tuple(chunk.head.file, chunk.head.source_offset, chunk.head.extent_token_begin);
    };
    std::stable_sort(
        a_.chunks_.begin(), a_.chunks_.end(),
        [&](const ArchivedChunk& a, const ArchivedChunk& b) { return key(a) < key(b); });
    std::vector<ArchivedChunk> kept;
    for (ArchivedChunk& chunk : a_.chunks_) {
      try {
        CheckPlace(chunk.head, kept.empty() ? nullptr : &kept.back().head);
        kept.push_back(std::move(chunk));
      } catch (Error& error) {
        if (a_.has_index()) throw error.In(Describe(chunk.head));
        Note("chunk", error, chunk.record_offset, chunk.head);
      }
    }
    a_.chunks_ = std::move(kept);
    IndexNeighbours();
    if (a_.has_index()) CheckTiling();
  }

  void IndexNeighbours() {
    a_.neighbours_ = std::make_shared<ArchiveNeighbours>();
    for (const ArchivedChunk& chunk : a_.chunks_) {
      a_.neighbours_->any |= kv::HasNeighbours(static_cast<CodecId>(chunk.head.codec));
    }
    for (size_t i = 0; i < a_.chunks_.size() && a_.neighbours_->any; ++i)
      a_.neighbours_->index.Add(i, a_.chunks_[i].head);
    for (size_t i = 0; i < a_.chunks_.size(); ++i) {
      const ChunkHead& head = a_.chunks_[i].head;
      if (head.is_transformed() && head.codec_parameter == 0) {
        a_.neighbours_->coefficients.emplace(
            std::tuple(head.layer, head.kind, head.token_begin, head.tokens), i);
      }
    }
  }

  void CheckPlace(const ChunkHead& head, const ChunkHead* before) const {
    if (head.file >= a_.files_.size() ||
        head.source_offset + head.extent_bytes > SizeAt(head.file)) {
      throw Error(Finding::kBadOffsets, "the extent lies outside the source");
    }
    if (head.by_cells && a_.orders_ == nullptr)
      throw Error(Finding::kBadField, "the source table describes no cells");
    if (before == nullptr || before->file != head.file ||
        before->source_offset + before->extent_bytes <= head.source_begin()) {
      return;
    }
    // Chunks that are equal except for their tokens share an extent, as only a transposed V may.
    ChunkHead same = *before;
    same.lead.clear();
    same.token_begin = head.token_begin;
    same.tokens = head.tokens;
    same.codec = head.codec;
    same.codec_parameter = head.codec_parameter;
    same.by_cells = head.by_cells;
    same.raw_bytes = head.raw_bytes;
    same.raw_hash = head.raw_hash;
    same.extent_token_begin = head.extent_token_begin;
    if (!head.shares_extent() || same != head ||
        before->extent_token_begin + before->tokens > head.extent_token_begin) {
      throw Error(Finding::kBadOffsets, "two chunks claim the same bytes of the source");
    }
  }

  // Returns the bytes that the chunks with this file number must cover: the size of the file; in a
  // group, the size of the whole group for its first file, and 0 for the others.
  uint64_t SizeAt(uint32_t file) const {
    const auto at = a_.grouped_.find(file);
    if (at == a_.grouped_.end()) return a_.files_[file].size;
    const FileGroup& group = a_.groups_[at->second.group];
    return group.first() == file ? a_.FindLayout(group).bytes() : 0;
  }

  // An archive with an index must be complete.
  void CheckTiling() const {
    size_t next = 0;
    for (uint32_t file = 0; file < a_.files_.size(); ++file) {
      uint64_t covered = 0;
      for (; next < a_.chunks_.size() && a_.chunks_[next].head.file == file; ++next) {
        covered += a_.chunks_[next].head.raw_bytes + a_.chunks_[next].head.lead.size();
      }
      const uint64_t size = SizeAt(file);
      if (covered != size) {
        throw Error(Finding::kBadOffsets, "chunks hold {} of the {} bytes of file {}", covered,
                    size, file);
      }
    }
  }

  Archive& a_;
  ByteSpan bytes_;
  bool have_table_ = false;
  uint32_t tag_ = 0;
};

Archive Archive::Open(std::shared_ptr<const FileSource> data) {
  Archive archive;
  archive.data_ = std::move(data);
  try {
    ArchiveReader(archive).Run();
  } catch (Error& error) {
    throw error.File(archive.data_->name());
  }
  return archive;
}

}  // namespace kv
