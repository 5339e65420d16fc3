// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "lib/core/archive/archive.h"
#include "lib/core/archive/chunk_encoder.h"
#include "lib/core/archive/coded_rows.h"
#include "lib/core/archive/neighbours.h"
#include "lib/core/archive/records.h"
#include "lib/core/base/hash.h"

namespace kv {
// Not in an anonymous namespace: ArchiveWriter::Body has members of these types.
namespace writing {

uint64_t ChunkBytes(const WriteOptions& options) {
  return options.chunk_bytes.value_or(ChunkBytesAt(options.effort));
}

using namespace kvz;

// Hashes a source in order, ahead of the workers that gather from the same pages. Files of groups
// are hashed while they are joined.
class SourceHasher {
 public:
  SourceHasher(const Source& source, const std::vector<FileGroup>& groups)
      : source_(source), hashes_(source.files.size()), grouped_(source.files.size()) {
    for (const FileGroup& group : groups) {
      for (const uint32_t file : group.files) grouped_[file] = true;
    }
  }

  void HashOne(uint32_t file, ByteSpan bytes) { hashes_[file] = Hash64(bytes); }

  // Hashes up to `end` of `file`; files must be visited in order.
  void Advance(uint32_t file, uint64_t end) {
    while (file_ < file) FinishFile();
    if (end <= position_) return;
    hash_.Update(source_.files[file_].data->bytes().subspan(position_, end - position_));
    position_ = end;
  }
  // Returns the hashes of the files, after finishing all of them.
  const std::vector<uint64_t>& Finish() {
    while (file_ < hashes_.size()) FinishFile();
    return hashes_;
  }

 private:
  void FinishFile() {
    if (grouped_[file_]) {
      ++file_;
      return;
    }
    KV_ASSERT(position_ == source_.files[file_].data->size());
    hashes_[file_++] = hash_.Digest();
    hash_ = StreamingHash();
    position_ = 0;
  }

  const Source& source_;
  StreamingHash hash_;
  std::vector<uint64_t> hashes_;
  std::vector<bool> grouped_;
  uint32_t file_ = 0;
  uint64_t position_ = 0;
};

struct Task {
  ChunkHead head;
  const FileSource* file = nullptr;     // the chunk's file
  std::shared_ptr<const Bytes> joined;  // bytes of the chunk's group, if its files are joined

  ByteSpan bytes() const { return joined != nullptr ? ByteSpan(*joined) : file->bytes(); }
};

struct Written {
  ChunkRecord record;
  const FileSource* file = nullptr;  // nullptr for chunks of groups
};

// Keeps only the references that some run uses.
Bases ChooseBases(const Snapshot* snapshot, const WriteOptions& options) {
  Bases bases;
  if (snapshot == nullptr || options.references.empty() || options.effort == Effort::kCompat)
    return bases;
  bases.plan = ReferencePlan(*snapshot, options.references,
                             options.effort >= Effort::kMax && options.joined_layers > 1);
  std::vector<uint16_t> places(options.references.size());
  // References without a run move to the end and are removed.
  const auto in_use = [&](size_t i) { return bases.plan.Uses(i); };
  uint16_t next = 0;
  for (const bool used : {true, false}) {
    for (size_t i = 0; i < places.size(); ++i) {
      if (in_use(i) != used) continue;
      places[i] = next++;
      if (used) bases.references.push_back(options.references[i]);
    }
  }
  bases.plan.Renumber(places);
  return bases;
}

SourceTable TableWith(const Bases& bases, const WriteOptions& options,
                      const std::vector<FileGroup>& groups, SourceTable table) {
  table.groups = groups;
  for (const auto& reference : bases.references) table.references.push_back(reference->name);
  if (const Profile* profile = options.profile.get())
    table.profile = {options.profile_file, profile->name(), profile->hash(),
                     options.embeds_profile};
  if (options.transformed != nullptr)
    table.approximation = options.transformed->transform->approximation();
  return table;
}

Grouping GroupSource(const Source& source, const Snapshot* snapshot, const WriteOptions& options) {
  std::vector<Region> regions =
      snapshot == nullptr ? std::vector<Region>() : FindRegions(*snapshot);
  if (!options.solid) return {{}, std::move(regions)};
  return GroupFiles(source, regions, ChunkBytes(options));
}

std::span<const uint64_t> Cuts(const WriteOptions& options) {
  if (options.transformed == nullptr) return {};
  return options.transformed->cuts;
}

// Returns the sizes as the planner expects them.
std::vector<uint64_t> ListSizes(const Source& source, const std::vector<FileGroup>& groups) {
  std::vector<uint64_t> sizes;
  for (const SourceFile& file : source.files) sizes.push_back(file.data->size());
  for (const FileGroup& group : groups) {
    uint64_t bytes = 0;
    for (const uint32_t file : group.files) bytes += std::exchange(sizes[file], 0);
    sizes[group.first()] = bytes;
  }
  return sizes;
}

// Returns the orders of chunks if any chunk's rows are reordered, else nullptr. The cells are those
// that the source table stores.
std::shared_ptr<const RowOrders> OrdersFor(const SourceTable& table,
                                           std::span<const ChunkHead> chunks,
                                           const WriteOptions& options, const Bases& bases) {
  if (options.effort < Effort::kDefault || !table.description) return nullptr;
  auto orders = std::make_shared<const RowOrders>(*table.description);
  if (orders->empty()) return nullptr;
  for (const ChunkHead& head : chunks) {
    if (OrderFor(head, orders.get(), bases, options.effort) != nullptr) return orders;
  }
  return nullptr;
}

bool HasRegressions(const WriteOptions& options) {
  return options.profile != nullptr && !options.profile->regressions().list.empty();
}

// Decides which chunks may be predicted from which.
NeighbourPlan PlanLayers(const Source& source, const Grouping& grouping,
                         std::span<const ChunkHead> chunks, const WriteOptions& options) {
  const bool alone = options.joined_layers < 2 || !grouping.groups.empty();
  if (options.effort < Effort::kMax || alone) return {};
  // Decoding with a profile's weights is fast enough for longer sets, unless the caller asks for
  // sets shorter than usual.
  const bool longer = HasRegressions(options) && options.joined_layers >= kJoinedLayers;
  return NeighbourPlan(source, chunks, longer ? kMostJoinedByProfile : options.joined_layers,
                       options.profile.get());
}

}  // namespace writing

using namespace writing;

class ArchiveWriter::Body {
 public:
  Body(const Source& source, const Snapshot* snapshot, const WriteOptions& options, Sink& out)
      : source_(source),
        options_(options),
        out_(out),
        grouping_(GroupSource(source, snapshot, options)),
        hasher_(source, grouping_.groups),
        bases_(ChooseBases(snapshot, options)),
        chunks_(PlanChunks(ListSizes(source, grouping_.groups), grouping_.regions,
                           ChunkBytes(options_), options_.effort, Cuts(options_))),
        table_(MakeTable(snapshot)),
        tag_(ReadTag(table_)),
        layers_(PlanLayers(source, grouping_, chunks_, options_)) {
    summary_.groups = grouping_.groups.size();
    for (const FileGroup& group : grouping_.groups) summary_.grouped_files += group.files.size();
    KV_ASSERT(ChunkBytes(options) > 0 && ChunkBytes(options) <= kMaxChunkBytes / 2);
    for (const auto& reference : bases_.references)
      summary_.references.push_back({.name = reference->name});
    Put(HeaderBytes());
    Put(TableRecord(RecordType::kSource, tag_, table_));
    if (options_.profile != nullptr && options_.embeds_profile)
      Put(TableRecord(RecordType::kProfile, tag_, options_.profile->file()));
  }

  uint64_t Advance(uint32_t file, uint64_t end, ThreadPool& pool) {
    const uint64_t window = 2 * static_cast<uint64_t>(pool.threads());
    pool.RunOrdered<Task, Written>(
        window, [&] { return NextTask(file, end); },
        [&](Task& task) {
          const bool is_joined = task.joined != nullptr;
          return Written{encoder_.Encode(task.head, task.bytes(), is_joined, tag_), task.file};
        },
        [&](Written& written) { Emit(written); });
    if (next_ == chunks_.size()) return end;
    const ChunkHead& next = chunks_[next_];
    if (GroupAt(next.file) != nullptr) return 0;
    return next.file > file ? end : std::min(end, next.source_begin());
  }

  WriteSummary Finish(ThreadPool& pool) {
    Advance(UINT32_MAX, UINT64_MAX, pool);
    WriteIndex();
    return summary_;
  }

 private:
  // Returns the next chunk if all of its bytes lie before `end` of `file`.
  std::optional<Task> NextTask(uint32_t file, uint64_t end) {
    if (next_ == chunks_.size()) return std::nullopt;
    Task task{chunks_[next_], source_.files[chunks_[next_].file].data.get(), nullptr};
    ChunkHead& head = task.head;
    const uint64_t head_end = head.source_offset + head.extent_bytes;
    if (const FileGroup* group = GroupAt(head.file)) {
      const uint32_t last = std::ranges::max(group->files);
      if (std::pair(last, source_.files[last].data->size()) > std::pair(file, end))
        return std::nullopt;
      task.file = nullptr;
      task.joined = Joined(*group);
    } else {
      if (std::pair(head.file, head_end) > std::pair(file, end)) return std::nullopt;
      hasher_.Advance(head.file, head_end);
    }
    ++next_;
    const ByteSpan lead = task.bytes().subspan(head.source_begin(), head.lead.size());
    std::ranges::copy(lead, head.lead.begin());
    return task;
  }

  // Returns the encoded source table and sets orders_.
  Bytes MakeTable(const Snapshot* snapshot) {
    SourceTable table = TableWith(bases_, options_, grouping_.groups,
                                  DescribeSource(source_, snapshot, grouping_.regions));
    orders_ = OrdersFor(table, chunks_, options_, bases_);
    if (table.description && HasRegressions(options_))
      cells_ = std::make_shared<const RowOrders>(*table.description);
    table.by_cells = orders_ != nullptr;
    return EncodeTable(table);
  }

  // Returns the group whose chunks have this file's number: the next one or the one before.
  const FileGroup* GroupAt(uint32_t file) {
    const std::vector<FileGroup>& groups = grouping_.groups;
    while (group_ < groups.size() && groups[group_].first() < file) ++group_;
    return group_ < groups.size() && groups[group_].first() == file ? &groups[group_] : nullptr;
  }

  // Returns the joined bytes of a group, which are kept while its chunks are being encoded.
  std::shared_ptr<const Bytes> Joined(const FileGroup& group) {
    if (joined_ != nullptr && joined_of_ == group.first()) return joined_;
    std::vector<uint64_t> sizes;
    for (const uint32_t file : group.files) sizes.push_back(source_.files[file].data->size());
    const GroupLayout layout(group, std::move(sizes));
    joined_.reset();
    auto joined = std::make_shared<Bytes>(layout.bytes());
    for (size_t place = 0; place < group.files.size(); ++place) {
      const FileSource& file = *source_.files[group.files[place]].data;
      layout.Join(place, file.bytes(), *joined);
      hasher_.HashOne(group.files[place], file.bytes());
      file.Drop(0, file.size());
    }
    joined_ = std::move(joined);
    joined_of_ = group.first();
    return joined_;
  }

  void Put(ByteSpan bytes) {
    out_.Write(bytes);
    summary_.archive_bytes += bytes.size();
  }

  void Emit(const Written& written) {
    const ChunkRecord& record = written.record;
    const ChunkHead& head = record.head;
    entries_.U64(summary_.archive_bytes);
    entries_.U64(record.encoded.payload.size());
    entries_.U64(record.payload_hash);
    entries_.U32(static_cast<uint32_t>(kChunkHeadBytes + head.lead.size()));
    AppendHead(head, entries_);
    ++entry_count_;
    Put(record.start);
    Put(record.encoded.payload);

    WriteSummary::Part& part = summary_.parts[static_cast<size_t>(head.kind)];
    part.raw_bytes += head.raw_bytes;
    part.stored_bytes += record.encoded.payload.size();
    ++part.chunks;
    WriteSummary::Part& other = summary_.parts[static_cast<size_t>(ChunkKind::kOpaque)];
    other.raw_bytes += head.lead.size();
    other.stored_bytes += head.lead.size();
    if (head.by_cells) ++summary_.ordered_chunks;
    ++summary_.codecs[std::string(Name(record.encoded.codec))];
    if (HasReferences(record.encoded.codec)) CountReferences(record);
    for (const PlaneChoice& plane : record.encoded.planes) {
      ++summary_.choices[fmt::format("{}+{}", Name(plane.predictor), Name(plane.backend))];
    }
    // A shared extent is needed until its last chunk is written.
    const bool ends_extent = head.extent_token_begin + head.tokens == head.extent_tokens ||
                             head.kind == ChunkKind::kOpaque;
    if (written.file != nullptr && ends_extent) {
      written.file->Drop(head.source_offset, head.extent_bytes);
    }
    if (options_.progress != nullptr) options_.progress->Advance(head.raw_bytes + head.lead.size());
  }

  void CountReferences(const ChunkRecord& record) {
    std::vector<bool> counted(summary_.references.size());
    for (const ReferenceRun& run : ReadReferenceRuns(record.head.shape(), record.encoded.payload)) {
      WriteSummary::Reference& one = summary_.references.at(run.reference);
      if (!counted[run.reference]) ++one.chunks;
      counted[run.reference] = true;
      one.rows += run.rows;
      if (run.equal) one.equal_rows += run.rows;
    }
  }

  void WriteIndex() {
    const std::vector<uint64_t>& hashes = hasher_.Finish();
    ByteWriter index;
    index.U64(table_.size());
    index.Append(table_);
    ByteWriter files;
    for (const uint64_t hash : hashes) files.U64(hash);
    index.Append(files.bytes());
    summary_.source_hash = source_.is_folder ? Hash64(files.bytes()) : hashes.at(0);
    index.U64(summary_.source_hash);
    index.U64(entry_count_);
    index.Append(entries_.bytes());
    const uint64_t index_offset = summary_.archive_bytes;
    Put(TableRecord(RecordType::kIndex, tag_, index.bytes()));
    Put(TrailerBytes({index_offset, summary_.archive_bytes - index_offset,
                      summary_.archive_bytes + kTrailerBytes}));
    summary_.source_bytes = source_.total_bytes();
    summary_.checked = options_.check;
  }

  const Source& source_;
  const WriteOptions options_;
  Sink& out_;
  const Grouping grouping_;
  SourceHasher hasher_;
  const Bases bases_;
  const std::vector<ChunkHead> chunks_;      // as planned
  std::shared_ptr<const RowOrders> orders_;  // nullptr if all rows are as in the source
  std::shared_ptr<const RowOrders> cells_;   // nullptr if no chunk asks for positions
  const Bytes table_;
  const uint32_t tag_;
  const NeighbourPlan layers_;
  const ChunkEncoder encoder_{options_.effort, options_.profile, options_.transformed,
                              options_.check,  bases_,           layers_,
                              orders_.get(),   cells_.get()};
  size_t next_ = 0;   // first chunk that was not handed out yet
  size_t group_ = 0;  // next group
  std::shared_ptr<const Bytes> joined_;
  uint32_t joined_of_ = 0;  // first file of the group whose bytes are in joined_
  WriteSummary summary_;
  ByteWriter entries_;
  uint64_t entry_count_ = 0;
};

ArchiveWriter::ArchiveWriter(const Source& source, const Snapshot* snapshot,
                             const WriteOptions& options, Sink& out)
    : body_(std::make_unique<Body>(source, snapshot, options, out)) {}
ArchiveWriter::~ArchiveWriter() = default;

uint64_t ArchiveWriter::Advance(uint32_t file, uint64_t end, ThreadPool& pool) {
  return body_->Advance(file, end, pool);
}

WriteSummary ArchiveWriter::Finish(ThreadPool& pool) { return body_->Finish(pool); }

WriteSummary WriteArchive(const Source& source, const Snapshot* snapshot,
                          const WriteOptions& options, ThreadPool& pool, Sink& out) {
  source.NeedAll();
  if (options.progress != nullptr) options.progress->Begin(source.total_bytes());
  return ArchiveWriter(source, snapshot, options, out).Finish(pool);
}

}  // namespace kv
