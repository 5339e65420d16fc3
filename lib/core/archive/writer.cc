// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/core/archive/archive.h"
#include "lib/core/archive/neighbours.h"
#include "lib/core/archive/records.h"
#include "lib/core/archive/row_order.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/reuse.h"
#include "lib/core/codec/profiled/profiled.h"

namespace kv {
// Named, since ArchiveWriter::Body is made of it.
namespace writing {

// Chunks are coded by others if that saves one byte in so many.
constexpr uint64_t kLeastGainByLayers = 200;

uint64_t ChunkBytes(const WriteOptions& options) {
  return options.chunk_bytes.value_or(options.effort >= Effort::kHigh ? 4 << 20 : 1 << 20);
}

using namespace kvz;

struct Task {
  ChunkHead head;
  const FileSource* file = nullptr;     // that the chunk is of, or
  std::shared_ptr<const Bytes> joined;  // the bytes of its group

  ByteSpan bytes() const { return joined != nullptr ? ByteSpan(*joined) : file->bytes(); }
};

struct Written {
  ChunkHead head;
  const FileSource* file = nullptr;  // null for chunks of groups
  Bytes start;                       // of the record, up to the payload
  uint64_t payload_hash = 0;
  EncodedChunk encoded;
};

// What is kept from chunk to chunk. Leased rather than of a thread: where memory runs out, the C
// library ends a program that cannot note a thread's destructors.
struct EncoderScratch {
  CodecScratch codec;
  ScratchBuffer raw, decoded, apart;
};

// `raw` is the chunk as it is in the source, or with heads apart.
void CheckAgainstSource(const ChunkHead& head, const EncodedChunk& encoded, ByteSpan raw,
                        const RowOrder* order, const ReferenceRows& rows,
                        const NeighbourSource& neighbours, const Profile* profile,
                        EncoderScratch& workspace) {
  std::span<std::byte> decoded = workspace.decoded.Get(raw.size()).first(raw.size());
  workspace.codec.references = &rows;
  workspace.codec.neighbours = &neighbours;
  workspace.codec.profile = profile;
  DecodeChunk(encoded.codec, head.shape(), encoded.payload, decoded, workspace.codec);
  workspace.codec.references = nullptr;
  workspace.codec.neighbours = nullptr;
  workspace.codec.profile = nullptr;
  if (order != nullptr) {
    const std::span<std::byte> restored = workspace.apart.Get(raw.size()).first(raw.size());
    order->Undo(decoded, restored);
    decoded = restored;
  }
  if (std::memcmp(decoded.data(), raw.data(), raw.size()) != 0) {
    throw Error(Finding::kInternal, "a chunk does not decode to what was encoded")
        .In(Describe(head));
  }
}

// What chunks may refer to.
struct Bases {
  References references;
  ReferencePlan plan;
};

EncodedChunk EncodeApart(const ChunkHead& head, ByteSpan raw, const WriteOptions& options,
                         const Bases& bases, const ReferenceRows& rows, CodecScratch& scratch) {
  if (head.kind == ChunkKind::kOpaque)
    return EncodeChunk(head.shape(), raw, options.effort, scratch);
  const bool is_value = head.kind == ChunkKind::kValue;
  const std::vector<ReferenceRun> runs =
      bases.plan.RunsOf(head.layer, is_value, head.token_begin, head.tokens);
  if (!runs.empty()) {
    return EncodeByReference(head.shape(), raw, runs, bases.plan.RotationOf(head.layer), rows,
                             options.effort, scratch);
  }
  if (options.profile == nullptr) return EncodeChunk(head.shape(), raw, options.effort, scratch);
  const ProfilePlace place{.layer = head.layer, .is_value = is_value};
  return EncodeWithProfile(*options.profile, place, head.shape(), raw, options.effort, scratch);
}

// The type of small files that no reader knows: that of floats where a sample of them says so.
DType GuessedType(ByteSpan raw, Effort effort, CodecScratch& scratch) {
  constexpr size_t kSample = 32 << 10;
  constexpr uint64_t kGainOneIn = 32;
  const ByteSpan sample = raw.first(std::min(raw.size(), kSample) / 4 * 4);
  if (effort == Effort::kCompat || raw.size() % 4 != 0 || sample.empty()) return DType::kU8;
  const auto cost = [&](DType dtype) {
    const ChunkShape shape{.dtype = dtype, .order = Order::kStorage};
    EncodedChunk coded = EncodeChunk(shape, sample, Effort::kFast, scratch);
    const uint64_t bytes = coded.payload.size();
    scratch.Recycle(std::move(coded.payload));
    return bytes;
  };
  DType best = DType::kU8;
  uint64_t least = cost(best);
  least -= least / kGainOneIn;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    const uint64_t bytes = cost(dtype);
    if (bytes >= least) continue;
    least = bytes;
    best = dtype;
  }
  return best;
}

// By others of the archive, if that is worth having to decode these first.
void TryNeighbours(ChunkHead& head, ByteSpan raw, const NeighbourPlan& plan,
                   const NeighbourSource& neighbours, CodecScratch& scratch, EncodedChunk& chunk) {
  const NeighbourPlan::Choice choice = plan.Of(head);
  if (choice.neighbours.empty()) return;
  const uint64_t to_beat = chunk.payload.size() - chunk.payload.size() / kLeastGainByLayers;
  Bytes payload = scratch.NewPayload();
  if (EncodeByLayers(head.shape(), raw, head.kind == ChunkKind::kValue, choice.neighbours,
                     neighbours, to_beat, scratch, payload)) {
    std::swap(chunk.payload, payload);
    chunk.codec = CodecId::kLayers;
    chunk.planes.clear();
    head.codec_parameter = choice.depth;
  }
  scratch.Recycle(std::move(payload));
}

// Whether a chunk's rows are coded by sequence and position. Levels below look at no other rows.
bool WantsOrder(const ChunkHead& head, const RowOrder& order, Effort effort) {
  const bool floats =
      head.dtype == DType::kF16 || head.dtype == DType::kBF16 || head.dtype == DType::kF32;
  if (!floats || head.order != Order::kTokenHeadDim || effort < Effort::kDefault) return false;
  // Positions say how far keys are turned, to levels that look for it, and at max values are coded
  // by keys.
  const bool turns =
      effort >= Effort::kMax || (effort >= Effort::kHigh && head.kind == ChunkKind::kKey);
  return order.moves || (order.jumps && turns);
}

// The order of a chunk's rows; null if they stay where they are. Rows of references are as they
// are there.
std::shared_ptr<const RowOrder> OrderFor(const ChunkHead& head, const RowOrders* orders,
                                         const Bases& bases, Effort effort) {
  if (orders == nullptr || head.kind == ChunkKind::kOpaque) return nullptr;
  const bool is_value = head.kind == ChunkKind::kValue;
  if (!bases.plan.RunsOf(head.layer, is_value, head.token_begin, head.tokens).empty())
    return nullptr;
  std::shared_ptr<const RowOrder> order = orders->Of(head.layer, head.token_begin, head.tokens);
  return order != nullptr && WantsOrder(head, *order, effort) ? order : nullptr;
}

// Blocks of one head after another, coded as the engine does it: their matches within a head may be
// worth more than those across heads.
bool WantsHeadsApart(const ChunkHead& head, Effort effort) {
  constexpr uint64_t kShortChunk = 64 << 10;
  const Effort least = head.raw_bytes <= kShortChunk ? Effort::kDefault : Effort::kHigh;
  return head.kind != ChunkKind::kOpaque && IsBlockQuantised(head.dtype) &&
         head.order == Order::kTokenHeadDim && head.heads_known && head.heads > 1 &&
         !head.shares_extent() && effort >= least;
}

// Returns the chunk's bytes in the order in which they are coded from now on.
std::span<std::byte> TryHeadsApart(ChunkHead& head, std::span<std::byte> raw,
                                   EncoderScratch& workspace, EncodedChunk& best) {
  const std::span<std::byte> apart = workspace.apart.Get(raw.size()).first(raw.size());
  Reorder(raw, head.order, apart, Order::kHeadTokenDim, head.tokens, head.heads, head.units,
          head.unit_bytes);
  ChunkHead other = head;
  other.order = Order::kHeadTokenDim;
  EncodedChunk coded = EncodeChunk(other.shape(), apart, Effort::kCompat, workspace.codec);
  const bool smaller = coded.payload.size() < best.payload.size();
  if (smaller) {
    std::swap(coded, best);
    other.raw_hash = Hash64(apart);
    head = std::move(other);
  }
  workspace.codec.Recycle(std::move(coded.payload));
  return smaller ? apart : raw;
}

Written Encode(const Task& task, uint32_t tag, const WriteOptions& options, const Bases& bases,
               const NeighbourPlan& plan, const RowOrders* orders, EncoderScratch& workspace) {
  Written written{.head = task.head, .file = task.file, .start = {}, .encoded = {}};
  ChunkHead& head = written.head;
  const ByteSpan extent = task.bytes().subspan(head.source_offset, head.extent_bytes);
  // A copy, always: the file may be written to meanwhile, and no encoder is made for bytes that
  // change between two looks.
  std::span<std::byte> raw = workspace.raw.Get(head.raw_bytes).first(head.raw_bytes);
  if (IsStoredAsIs(head)) {
    std::memcpy(raw.data(), extent.data(), raw.size());
  } else {
    GatherChunk(head, extent, raw);
  }
  head.raw_hash = Hash64(raw);
  if (task.joined != nullptr && head.kind == ChunkKind::kOpaque && head.dtype == DType::kU8)
    head.dtype = GuessedType(raw, options.effort, workspace.codec);
  const std::shared_ptr<const RowOrder> order = OrderFor(head, orders, bases, options.effort);
  head.by_cells = order != nullptr;
  std::span<std::byte> coded = raw;
  if (order != nullptr) {
    coded = workspace.codec.ordered.Get(raw.size()).first(raw.size());
    order->Apply(raw, coded);
  }
  const StepsForNow steps(order == nullptr ? RowSteps() : RowSteps(order->steps), workspace.codec);
  const RowsOfReferences rows(bases.references);
  const NeighbourPlan::Rows neighbours_there(plan, task.head);
  const OrderedNeighbours neighbours(neighbours_there, order.get());
  written.encoded = EncodeApart(head, coded, options, bases, rows, workspace.codec);
  if (WantsHeadsApart(head, options.effort))
    raw = coded = TryHeadsApart(head, raw, workspace, written.encoded);
  TryNeighbours(head, coded, plan, neighbours, workspace.codec, written.encoded);
  head.codec = static_cast<uint8_t>(written.encoded.codec);
  if (options.check) {
    CheckAgainstSource(head, written.encoded, raw, order.get(), rows, neighbours,
                       options.profile.get(), workspace);
  }
  written.payload_hash = Hash64(written.encoded.payload);
  ByteWriter bytes;
  AppendHead(head, bytes);
  written.start = RecordStart(RecordType::kChunk, tag, bytes.bytes(),
                              written.encoded.payload.size(), written.payload_hash);
  return written;
}

// Hashes a source in order, reading ahead of the workers that gather from the same pages. Files of
// groups are hashed where they are joined.
class SourceHasher {
 public:
  SourceHasher(const Source& source, const std::vector<FileGroup>& groups)
      : source_(source), hashes_(source.files.size()), grouped_(source.files.size()) {
    for (const FileGroup& group : groups) {
      for (const uint32_t file : group.files) grouped_[file] = true;
    }
  }

  void HashOne(uint32_t file, ByteSpan bytes) { hashes_[file] = Hash64(bytes); }

  // Up to `end` in `file`; files are visited in order.
  void Advance(uint32_t file, uint64_t end) {
    while (file_ < file) FinishFile();
    if (end <= position_) return;
    hash_.Update(source_.files[file_].data->bytes().subspan(position_, end - position_));
    position_ = end;
  }
  // Hashes of the files, once everything was visited.
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
    hash_ = StreamingHash64();
    position_ = 0;
  }

  const Source& source_;
  StreamingHash64 hash_;
  std::vector<uint64_t> hashes_;
  std::vector<bool> grouped_;
  uint32_t file_ = 0;
  uint64_t position_ = 0;
};

// Keeps the references that are of use.
Bases BasesOf(const Snapshot* snapshot, const WriteOptions& options) {
  Bases bases;
  if (snapshot == nullptr || options.references.empty() || options.effort == Effort::kCompat)
    return bases;
  bases.plan = ReferencePlan(*snapshot, options.references);
  std::vector<uint16_t> places(options.references.size());
  // Those without a use go to the end, and leave the list.
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
    table.profile = {options.profile_file, profile->name(), profile->hash()};
  return table;
}

Grouping GroupingOf(const Source& source, const Snapshot* snapshot, const WriteOptions& options) {
  std::vector<Region> regions = snapshot == nullptr ? std::vector<Region>() : RegionsOf(*snapshot);
  if (!options.solid) return {{}, std::move(regions)};
  return GroupFiles(source, regions, ChunkBytes(options));
}

// As the planner sees them.
std::vector<uint64_t> SizesOf(const Source& source, const std::vector<FileGroup>& groups) {
  std::vector<uint64_t> sizes;
  for (const SourceFile& file : source.files) sizes.push_back(file.data->size());
  for (const FileGroup& group : groups) {
    uint64_t bytes = 0;
    for (const uint32_t file : group.files) bytes += std::exchange(sizes[file], 0);
    sizes[group.first()] = bytes;
  }
  return sizes;
}

// All chunks, as they are going to be planned.
std::vector<ChunkHead> PlannedChunks(const Source& source, const Grouping& grouping,
                                     const WriteOptions& options) {
  std::vector<ChunkHead> heads;
  Planner planner(SizesOf(source, grouping.groups), grouping.regions, ChunkBytes(options),
                  options.effort);
  while (std::optional<ChunkHead> head = planner.Next()) heads.push_back(*std::move(head));
  return heads;
}

// The orders of chunks, if any chunk's rows are coded in another one than the source's. What cells
// there are is what the source table says.
std::shared_ptr<const RowOrders> OrdersFor(const Source& source, const SourceTable& table,
                                           const Grouping& grouping, const WriteOptions& options,
                                           const Bases& bases) {
  if (options.effort < Effort::kDefault || !table.description) return nullptr;
  auto orders = std::make_shared<const RowOrders>(*table.description);
  if (orders->empty()) return nullptr;
  for (const ChunkHead& head : PlannedChunks(source, grouping, options)) {
    if (OrderFor(head, orders.get(), bases, options.effort) != nullptr) return orders;
  }
  return nullptr;
}

// Which chunks may be coded by which: all of them are planned twice.
NeighbourPlan PlanLayers(const Source& source, const Grouping& grouping,
                         const WriteOptions& options, const Bases& bases) {
  const bool alone = options.joined_layers < 2 || !bases.plan.empty() || !grouping.groups.empty();
  if (options.effort < Effort::kMax || alone) return {};
  return NeighbourPlan(source, PlannedChunks(source, grouping, options), options.joined_layers);
}

}  // namespace writing

using namespace writing;

class ArchiveWriter::Body {
 public:
  Body(const Source& source, const Snapshot* snapshot, const WriteOptions& options, Sink& out)
      : source_(source),
        options_(options),
        out_(out),
        grouping_(GroupingOf(source, snapshot, options)),
        hasher_(source, grouping_.groups),
        bases_(BasesOf(snapshot, options)),
        table_(MakeTable(snapshot)),
        tag_(TagOf(table_)),
        planner_(SizesOf(source, grouping_.groups), grouping_.regions, ChunkBytes(options_),
                 options_.effort),
        layers_(PlanLayers(source, grouping_, options_, bases_)) {
    summary_.groups = grouping_.groups.size();
    for (const FileGroup& group : grouping_.groups) summary_.grouped_files += group.files.size();
    KV_ASSERT(ChunkBytes(options) > 0 && ChunkBytes(options) <= kMaxChunkBytes / 2);
    for (const auto& reference : bases_.references)
      summary_.references.push_back({.name = reference->name});
    Put(HeaderBytes());
    Put(TableRecord(RecordType::kSource, tag_, table_));
  }

  uint64_t Advance(uint32_t file, uint64_t end, ThreadPool& pool) {
    const uint64_t window = 2 * static_cast<uint64_t>(pool.threads());
    pool.RunOrdered<Task, Written>(
        window,
        [&]() -> std::optional<Task> {
          if (!next_) next_ = planner_.Next();
          if (!next_) return std::nullopt;
          Task task{*next_, source_.files[next_->file].data.get(), nullptr};
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
          next_.reset();
          const ByteSpan lead = task.bytes().subspan(head.source_begin(), head.lead.size());
          std::ranges::copy(lead, head.lead.begin());
          return task;
        },
        [&](Task& task) {
          const Reuse<EncoderScratch>::Lease workspace(workspaces_);
          return Encode(task, tag_, options_, bases_, layers_, orders_.get(), *workspace);
        },
        [&](Written& written) { Emit(written); });
    if (!next_) return end;
    if (GroupAt(next_->file) != nullptr) return 0;
    return next_->file > file ? end : std::min(end, next_->source_begin());
  }

  WriteSummary Finish(ThreadPool& pool) {
    Advance(UINT32_MAX, UINT64_MAX, pool);
    WriteIndex();
    return summary_;
  }

 private:
  // Of the source, encoded. Sets orders_.
  Bytes MakeTable(const Snapshot* snapshot) {
    SourceTable table = TableWith(bases_, options_, grouping_.groups,
                                  TableOf(source_, snapshot, grouping_.regions));
    orders_ = OrdersFor(source_, table, grouping_, options_, bases_);
    table.by_cells = orders_ != nullptr;
    return EncodeTable(table);
  }

  // The group whose chunks have this file's number, which is the next one or the one before.
  const FileGroup* GroupAt(uint32_t file) {
    const std::vector<FileGroup>& groups = grouping_.groups;
    while (group_ < groups.size() && groups[group_].first() < file) ++group_;
    return group_ < groups.size() && groups[group_].first() == file ? &groups[group_] : nullptr;
  }

  // The joined bytes of a group, as long as chunks of it are made.
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

  void Emit(Written& written) {
    const ChunkHead& head = written.head;
    entries_.U64(summary_.archive_bytes);
    entries_.U64(written.encoded.payload.size());
    entries_.U64(written.payload_hash);
    entries_.U32(static_cast<uint32_t>(kChunkHeadBytes + head.lead.size()));
    AppendHead(head, entries_);
    ++entry_count_;
    Put(written.start);
    Put(written.encoded.payload);

    WriteSummary::Part& part = summary_.parts[static_cast<size_t>(head.kind)];
    part.raw_bytes += head.raw_bytes;
    part.stored_bytes += written.encoded.payload.size();
    ++part.chunks;
    WriteSummary::Part& other = summary_.parts[static_cast<size_t>(ChunkKind::kOpaque)];
    other.raw_bytes += head.lead.size();
    other.stored_bytes += head.lead.size();
    if (head.by_cells) ++summary_.ordered_chunks;
    ++summary_.codecs[std::string(Name(written.encoded.codec))];
    if (HasReferences(written.encoded.codec)) CountReferences(written);
    for (const PlaneChoice& plane : written.encoded.planes) {
      ++summary_.choices[fmt::format("{}+{}", Name(plane.predictor), Name(plane.backend))];
    }
    // A shared extent is needed until its last chunk is out.
    const bool ends_extent = head.extent_token_begin + head.tokens == head.extent_tokens ||
                             head.kind == ChunkKind::kOpaque;
    if (written.file != nullptr && ends_extent) {
      written.file->Drop(head.source_offset, head.extent_bytes);
    }
    if (options_.progress != nullptr) options_.progress->Advance(head.raw_bytes + head.lead.size());
  }

  void CountReferences(const Written& written) {
    std::vector<bool> counted(summary_.references.size());
    for (const ReferenceRun& run :
         ReadReferenceRuns(written.head.shape(), written.encoded.payload)) {
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
  std::shared_ptr<const RowOrders> orders_;  // null if all rows are as in the source
  const Bytes table_;
  const uint32_t tag_;
  Planner planner_;
  const NeighbourPlan layers_;
  std::optional<ChunkHead> next_;  // planned, and not yet wanted
  size_t group_ = 0;               // the next one
  std::shared_ptr<const Bytes> joined_;
  uint32_t joined_of_ = 0;  // the group's first file
  Reuse<EncoderScratch> workspaces_;
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
