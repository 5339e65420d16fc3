// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include "lib/core/archive/archive.h"
#include "lib/core/archive/records.h"
#include "lib/core/base/arena.h"
#include "lib/core/base/hash.h"

namespace kv {
namespace {

using namespace kvz;

// One step through the source: a chunk, a hole where a chunk is missing, or the end of a file or
// group.
struct Step {
  enum Kind { kChunk, kHole, kEndOfFile } kind = kChunk;
  uint32_t file = 0;
  uint64_t offset = 0, bytes = 0;
  const ArchivedChunk* chunk = nullptr;
  std::shared_ptr<Bytes> extent;  // destination of the units of a chunk that shares its extent
  bool ends_extent = false;
  const FileGroup* group = nullptr;
  std::shared_ptr<Bytes> joined;  // the group's bytes, if any of its chunks is present
};

struct Restored {
  Step step;
  Bytes bytes;  // in the order of the source; empty if the extent is shared
  std::optional<Error> failure;
};

// A workspace is leased instead of thread-local: if memory runs out while the C library registers a
// thread's destructor, it ends the program.
struct Workspace {
  CodecScratch codec;
  Bytes raw;
};

Restored RestoreChunk(const Archive& archive, Step& step, bool keep_going, Workspace& workspace) {
  Restored result{std::move(step), {}, std::nullopt};
  if (result.step.kind != Step::kChunk) return result;
  const ChunkHead& head = result.step.chunk->head;
  // Chunks of a group have no bytes in common, so threads never write the same byte.
  Bytes* joined = result.step.joined.get();
  if (joined != nullptr)
    std::ranges::copy(head.lead, joined->begin() + static_cast<ptrdiff_t>(head.source_begin()));
  try {
    if (joined != nullptr) {
      archive.Decode(*result.step.chunk, workspace.codec, workspace.raw);
      ScatterChunk(head, workspace.raw,
                   std::span(*joined).subspan(head.source_offset, head.extent_bytes));
    } else if (IsStoredAsIs(head)) {
      archive.Decode(*result.step.chunk, workspace.codec, result.bytes);
    } else {
      archive.Decode(*result.step.chunk, workspace.codec, workspace.raw);
      if (!head.shares_extent()) result.bytes.resize(head.extent_bytes);
      // Chunks of one extent have disjoint tokens, so threads never write the same byte.
      ScatterChunk(head, workspace.raw, head.shares_extent() ? *result.step.extent : result.bytes);
    }
  } catch (const Error& error) {
    if (!keep_going) throw;
    result.failure = error;
  }
  return result;
}

LostRange LostBy(const ChunkHead& head) {
  LostRange lost{.file = head.file, .offset = head.source_offset, .chunk = head};
  if (!head.shares_extent()) {
    lost.run_bytes = head.extent_bytes;
    return lost;
  }
  lost.offset += head.extent_token_begin * head.unit_bytes;
  lost.run_bytes = head.tokens * head.unit_bytes;
  lost.run_step = head.extent_tokens * head.unit_bytes;
  lost.runs = uint64_t{head.heads} * head.units;
  return lost;
}

// Converts a lost range of a group's joined bytes to ranges of its files.
std::vector<LostRange> LostOfFiles(const LostRange& lost, const FileGroup& group,
                                   const GroupLayout& layout) {
  std::vector<LostRange> all;
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  // For each file of the group: the index of its last range in `all`.
  std::vector<size_t> last(group.files.size(), kNone);
  const auto add = [&](const GroupLayout::Piece& piece) {
    if (const size_t at = last[piece.place]; at != kNone) {
      LostRange& before = all[at];
      if (before.runs == 1 && before.end() == piece.file_offset) {
        before.run_bytes += piece.bytes;
        return;
      }
      const uint64_t step = before.runs == 1 ? piece.file_offset - before.offset : before.run_step;
      if (before.run_bytes == piece.bytes &&
          piece.file_offset == before.offset + before.runs * step) {
        before.run_step = step;
        ++before.runs;
        return;
      }
    }
    last[piece.place] = all.size();
    all.push_back({.file = group.files[piece.place],
                   .offset = piece.file_offset,
                   .run_bytes = piece.bytes,
                   .chunk = lost.chunk});
  };
  for (uint64_t run = 0; run < lost.runs; ++run) {
    layout.ForEachPiece(lost.offset + run * lost.run_step, lost.run_bytes, add);
  }
  return all;
}

class Restorer {
 public:
  Restorer(const Archive& archive, const RestoreOptions& options, RestoreTarget& target)
      : archive_(archive),
        options_(options),
        target_(target),
        file_hashes_(archive.files().size()) {}

  RestoreReport Run(ThreadPool& pool) {
    report_.damage = archive_.damage();
    for (Damage& damage : archive_.CheckRecords()) report_.damage.push_back(std::move(damage));
    if (!options_.keep_going && !report_.damage.empty()) throw report_.damage[0].AsError();
    Reuse<Workspace> workspaces;
    pool.RunOrdered<Step, Restored>(
        2 * static_cast<uint64_t>(pool.threads()), [&] { return Next(); },
        [&](Step& step) {
          const Reuse<Workspace>::Lease workspace(workspaces);
          return RestoreChunk(archive_, step, options_.keep_going, *workspace);
        },
        [&](Restored& restored) { Emit(restored); });
    FinishSource();
    return std::move(report_);
  }

 private:
  std::optional<Step> Next() {
    const FileGroup* group = nullptr;
    // The other files of a group are emitted together with its first one.
    for (; file_ < archive_.files().size(); ++file_) {
      group = archive_.FindGroup(file_);
      if (group == nullptr || group->first() == file_) break;
    }
    if (file_ == archive_.files().size()) return std::nullopt;
    const uint64_t size =
        group != nullptr ? archive_.FindLayout(*group).bytes() : archive_.files()[file_].size;
    Step step;
    step.file = file_;
    step.offset = position_;
    step.group = group;
    step.joined = joined_;
    const std::vector<ArchivedChunk>& chunks = archive_.chunks();
    const bool more = next_ < chunks.size() && chunks[next_].head.file == file_;
    if (!more || chunks[next_].head.source_begin() > position_) {
      const uint64_t end = more ? chunks[next_].head.source_begin() : size;
      step.kind = end > position_ ? Step::kHole : Step::kEndOfFile;
      step.bytes = end - position_;
      position_ = end;
      if (step.kind == Step::kEndOfFile) {
        ++file_;
        position_ = 0;
        joined_.reset();
      }
      return step;
    }
    if (group != nullptr && joined_ == nullptr)
      step.joined = joined_ = std::make_shared<Bytes>(size);
    step.chunk = &chunks[next_++];
    const ChunkHead& head = step.chunk->head;
    step.bytes = head.extent_bytes;
    if (head.shares_extent()) {
      if (extent_ == nullptr && group == nullptr)
        extent_ = std::make_shared<Bytes>(head.extent_bytes);
      step.extent = extent_;
      step.ends_extent = next_ == chunks.size() || chunks[next_].head.file != file_ ||
                         chunks[next_].head.source_offset != head.source_offset;
      position_ = head.source_offset;
      if (!step.ends_extent) return step;
      extent_.reset();
    }
    position_ = head.source_offset + head.extent_bytes;
    return step;
  }

  void Emit(Restored& restored) {
    const Step& step = restored.step;
    if (step.group != nullptr) return EmitGrouped(restored);
    if (sink_ == nullptr) sink_ = &target_.Begin(step.file);
    if (restored.failure) Fail(*restored.failure, step);
    switch (step.kind) {
      case Step::kHole:
        Lose({.file = step.file, .offset = step.offset, .run_bytes = step.bytes, .chunk = {}});
        WriteZeros(step.bytes);
        break;
      case Step::kChunk:
        Write(step.chunk->head.lead);
        if (!step.extent) {
          if (restored.failure) {
            WriteZeros(step.chunk->head.extent_bytes);
          } else {
            Write(restored.bytes);
          }
        } else {
          NoteGaps(step);
          if (step.ends_extent) Write(*step.extent);
        }
        Done(*step.chunk);
        break;
      case Step::kEndOfFile:
        FinishFile(step.file);
        break;
    }
  }

  void Done(const ArchivedChunk& chunk) {
    archive_.data().Drop(chunk.record_offset, chunk.record_end() - chunk.record_offset);
    if (options_.progress != nullptr) options_.progress->Advance(chunk.head.raw_bytes);
  }

  // Chunks of a group have already been put in place; the files are written at the end of the
  // group.
  void EmitGrouped(const Restored& restored) {
    const Step& step = restored.step;
    if (restored.failure) Fail(*restored.failure, step);
    if (step.kind == Step::kHole)
      Lose({.file = step.file, .offset = step.offset, .run_bytes = step.bytes, .chunk = {}});
    if (step.kind == Step::kChunk) {
      if (step.chunk->head.shares_extent()) NoteGaps(step);
      Done(*step.chunk);
    }
    if (step.kind != Step::kEndOfFile) return;
    const GroupLayout& layout = archive_.FindLayout(*step.group);
    for (size_t place = 0; place < step.group->files.size(); ++place) {
      const uint32_t file = step.group->files[place];
      sink_ = &target_.Begin(file);
      if (step.joined != nullptr) {
        file_bytes_.resize(layout.size_of(place));
        layout.Part(place, *step.joined, file_bytes_);
        Write(file_bytes_);
      } else {
        WriteZeros(layout.size_of(place));
      }
      FinishFile(file);
    }
  }

  // Records the tokens of a shared extent whose chunks are all missing.
  void NoteGaps(const Step& step) {
    const ChunkHead& head = step.chunk->head;
    const auto lose = [&](uint64_t begin, uint64_t end) {
      if (begin == end) return;
      ChunkHead missing = head;
      missing.token_begin = head.token_begin - head.extent_token_begin + begin;
      missing.extent_token_begin = begin;
      missing.tokens = end - begin;
      Lose(LostBy(missing));
    };
    lose(extent_tokens_, head.extent_token_begin);
    extent_tokens_ = head.extent_token_begin + head.tokens;
    if (!step.ends_extent) return;
    lose(extent_tokens_, head.extent_tokens);
    extent_tokens_ = 0;
  }

  void Fail(const Error& error, const Step& step) {
    report_.damage.push_back({"chunk", error.message(), error.finding(),
                              error.offset().value_or(step.chunk->record_offset),
                              step.chunk->head});
    Lose(LostBy(step.chunk->head));
  }

  void Lose(LostRange lost) {
    if (!options_.keep_going) {
      throw Error(Finding::kLostChunk, "bytes {} to {} of the source are not in the archive",
                  lost.offset, lost.end());
    }
    report_.lost_bytes += lost.bytes();
    if (const FileGroup* group = archive_.FindGroup(lost.file)) {
      for (LostRange& one : LostOfFiles(lost, *group, archive_.FindLayout(*group)))
        report_.lost.push_back(std::move(one));
    } else {
      report_.lost.push_back(std::move(lost));
    }
  }

  void Write(ByteSpan bytes) {
    hash_.Update(bytes);
    sink_->Write(bytes);
    report_.bytes += bytes.size();
  }

  // A damaged archive may claim far more bytes than can be hashed or written, so hashing stops
  // early.
  void WriteZeros(uint64_t count) {
    constexpr uint64_t kMostHashed = uint64_t{1} << 30;
    skipped_ += count;
    if (skipped_ > kMostHashed) {
      hashes_hold_ = false;
    } else {
      const Bytes zeros(std::min<uint64_t>(count, 1 << 20));
      for (uint64_t left = count; left > 0;) {
        const uint64_t step = std::min<uint64_t>(left, zeros.size());
        hash_.Update(ByteSpan(zeros).first(step));
        left -= step;
      }
    }
    sink_->Skip(count);
    report_.bytes += count;
  }

  void FinishFile(uint32_t file) {
    target_.End(file);
    sink_ = nullptr;
    const uint64_t digest = hash_.Digest();
    hash_ = StreamingHash();
    file_hashes_[file] = digest;
    CheckHash(fmt::format("file {}", archive_.files()[file].name), archive_.files()[file].hash,
              digest);
  }

  void FinishSource() {
    if (!hashes_hold_) return;
    ByteWriter hashes;
    for (const uint64_t hash : file_hashes_) hashes.U64(hash);
    report_.source_hash = archive_.is_folder() ? Hash64(hashes.bytes()) : file_hashes_.at(0);
    CheckHash("source", archive_.source_hash(), *report_.source_hash);
  }

  // If every chunk is intact and in place, only a malformed archive can fail here.
  void CheckHash(const std::string& what, std::optional<uint64_t> stored, uint64_t computed) {
    if (!stored || *stored == computed || report_.lost_bytes > 0) return;
    report_.damage.push_back(
        {"restored source",
         fmt::format("{}: checksum {:016x} stored, {:016x} computed", what, *stored, computed),
         Finding::kContentDiffers, 0, std::nullopt});
    if (!options_.keep_going) throw report_.damage.back().AsError();
  }

  const Archive& archive_;
  const RestoreOptions& options_;
  RestoreTarget& target_;
  RestoreReport report_;
  // the steps that are being made
  uint32_t file_ = 0;
  uint64_t position_ = 0;
  size_t next_ = 0;
  std::shared_ptr<Bytes> extent_, joined_;
  // the steps that are being emitted
  Sink* sink_ = nullptr;
  uint64_t extent_tokens_ = 0;
  uint64_t skipped_ = 0;
  bool hashes_hold_ = true;
  StreamingHash hash_;
  std::vector<uint64_t> file_hashes_;
  Bytes file_bytes_;  // the current file of a group
};

}  // namespace

RestoreReport Restore(const Archive& archive, const RestoreOptions& options, ThreadPool& pool,
                      RestoreTarget& target) {
  if (options.progress != nullptr) options.progress->Begin(archive.source_bytes());
  try {
    return Restorer(archive, options, target).Run(pool);
  } catch (Error& error) {
    throw error.File(archive.data().name());
  }
}

SourceComparer::SourceComparer(const Archive& archive, const Source& source)
    : archive_(archive), source_(source) {
  if (archive.is_folder() != source.is_folder) {
    throw Error(Finding::kContentDiffers, archive.is_folder()
                                              ? "the archive holds a folder, a file was given"
                                              : "the archive holds a file, a folder was given")
        .File(source.path);
  }
  for (const SourceFile& file : source.files) {
    if (archive.is_folder() &&
        !std::ranges::binary_search(archive.files(), file.name, {}, &ArchivedFile::name)) {
      differences_.push_back({file.name, "is not in the archive", 0, std::nullopt});
    }
  }
  CompareFolders();
}

void SourceComparer::CompareFolders() {
  const auto only_in = [&](const std::vector<std::string>& a, const std::vector<std::string>& b,
                           const char* text) {
    std::vector<std::string> names;
    std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(names));
    for (const std::string& name : names) differences_.push_back({name, text, 0, std::nullopt});
  };
  only_in(source_.empty_folders, archive_.empty_folders(),
          "is an empty folder that is not in the archive");
  only_in(archive_.empty_folders(), source_.empty_folders,
          "is an empty folder only in the archive");
}

Sink& SourceComparer::Begin(size_t file) {
  const ArchivedFile& archived = archive_.files()[file];
  const SourceFile* found = archive_.is_folder() ? source_.Find(archived.name) : &source_.files[0];
  if (archive_.is_folder() && found != nullptr && found->executable != archived.executable) {
    differences_.push_back({archived.name,
                            archived.executable ? "is not executable, but the archived file is"
                                                : "is executable, but the archived file is not",
                            0, std::nullopt});
  }
  other_ = found == nullptr ? nullptr : found->data.get();
  file_ = file;
  position_ = 0;
  if (other_ == nullptr) {
    differences_.push_back({archived.name, "is only in the archive", 0, std::nullopt});
  } else if (other_->size() != archived.size) {
    const uint64_t shorter = std::min(other_->size(), archived.size);
    differences_.push_back(
        {archived.name, fmt::format("has {} bytes, {} are archived", other_->size(), archived.size),
         shorter, std::nullopt});
  }
  return *this;
}

void SourceComparer::End(size_t) {}

void SourceComparer::Write(ByteSpan bytes) {
  if (other_ == nullptr) return;
  // Compares in pieces: an extent may arrive in one piece, and the other side's pages need not all
  // be in memory at once.
  constexpr uint64_t kPiece = 1 << 20;
  for (uint64_t at = 0; at < bytes.size(); at += kPiece) {
    Compare(bytes.subspan(at, std::min<uint64_t>(kPiece, bytes.size() - at)));
  }
}

void SourceComparer::Compare(ByteSpan bytes) {
  const uint64_t size =
      std::min<uint64_t>(bytes.size(), other_->size() - std::min(position_, other_->size()));
  if (size > 0 && std::memcmp(bytes.data(), other_->bytes().data() + position_, size) != 0) {
    // Searches in steps for the chunks that differ: one finding per chunk, not per byte.
    constexpr uint64_t kStep = 256;
    for (uint64_t at = 0; at < size; at += kStep) {
      const uint64_t step = std::min(kStep, size - at);
      const std::byte* a = bytes.data() + at;
      const std::byte* b = other_->bytes().data() + position_ + at;
      if (std::memcmp(a, b, step) == 0) continue;
      for (uint64_t i = 0; i < step; ++i) {
        if (a[i] != b[i]) Mismatch(position_ + at + i);
      }
    }
  }
  if (size > 0) other_->Drop(position_, size);
  position_ += bytes.size();
}

void SourceComparer::Mismatch(uint64_t offset) {
  const auto file = static_cast<uint32_t>(file_);
  const ArchivedChunk* chunk = archive_.FindChunk(file, offset);
  if (!different_.insert(chunk).second) return;
  std::optional<ChunkHead> head;
  if (chunk != nullptr) head = chunk->head;
  differences_.push_back({archive_.files()[file_].name,
                          fmt::format("differs, first at byte {}", offset), offset, head});
}

}  // namespace kv
