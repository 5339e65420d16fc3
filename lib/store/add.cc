// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "lib/core/base/arena.h"
#include "lib/core/base/hash.h"
#include "lib/store/state.h"
#include "lib/store/store.h"

namespace kv::store {

// Not in an anonymous namespace: Store::Adder has members of these types.
namespace adding {

// Number of states with the same beginning that are searched for the longest common one.
constexpr uint64_t kMostCandidates = 32;
constexpr uint64_t kBlockTokens = 256, kLongBlockTokens = 1024;

// A piece to be cut out of the source.
struct Cut {
  size_t file = 0, extent = 0;
  uint64_t begin = 0, count = 0;
  uint64_t offset = 0;  // offset of the extent in its file
};

struct CutObject {
  Cut cut;
  ObjectHead head;
  bool is_known = false;  // true if the index has the object
  Bytes payload;
};

struct Workspace {
  CodecScratch codec;
  Bytes raw, decoded;
};

ByteSpan BytesOf(const Source& source, const Cut& cut, const Extent& extent) {
  return source.files[cut.file].data->bytes().subspan(cut.offset, extent.size());
}

// Always copies, because the file may be written to meanwhile.
void CopyOut(const Extent& extent, ByteSpan bytes, uint64_t begin, uint64_t count, Bytes& raw) {
  raw.resize(extent.BytesOf({{}, count}));
  if (extent.kind == Extent::Kind::kTensor) return GatherRows(extent, bytes, begin, count, raw);
  std::memcpy(raw.data(), bytes.data() + begin, raw.size());
}

ChunkShape MakeChunkShape(const Extent& extent, uint64_t count) {
  if (extent.kind == Extent::Kind::kTensor)
    return {extent.dtype, count, extent.heads, extent.units, Order::kTokenHeadDim};
  return {extent.dtype, 0, 0, 0, Order::kStorage};
}

using Part = std::tuple<uint32_t, bool, uint64_t>;
Part NamePart(const Extent& extent) { return {extent.layer, extent.is_value, extent.token_begin}; }

std::map<Part, const Extent*> MapParts(const StateRecord& record) {
  std::map<Part, const Extent*> parts;
  for (const StoredFile& file : record.files) {
    for (const Extent& extent : file.extents) {
      if (extent.kind == Extent::Kind::kTensor) parts.emplace(NamePart(extent), &extent);
    }
  }
  return parts;
}

uint64_t SumCounts(const std::vector<Piece>& pieces) {
  uint64_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  return count;
}

std::string DescribeGeometry(const Snapshot& snapshot) {
  if (snapshot.layers.empty()) return {};
  const KvTensor& k = snapshot.layers[0].has_k() ? snapshot.layers[0].k : *snapshot.layers[0].v;
  return k.heads_known
             ? fmt::format("{} x {}x{} {}", snapshot.layers.size(), k.heads, k.head_dim,
                           Name(k.dtype))
             : fmt::format("{} x {} {}", snapshot.layers.size(), k.channels(), Name(k.dtype));
}

uint64_t CountTokens(const Snapshot& snapshot) {
  uint64_t tokens = 0;
  for (const LayerKv& layer : snapshot.layers) {
    tokens = std::max(tokens, layer.has_k() ? layer.k.tokens() : layer.v ? layer.v->tokens() : 0);
  }
  return tokens;
}

}  // namespace adding

using namespace adding;

// One run of Add.
class Store::Adder {
 public:
  Adder(Store& store, const Source& source, const AddOptions& options, ThreadPool& pool)
      : store_(store), source_(source), options_(options), pool_(pool) {
    const bool is_slow = options.effort >= Effort::kHigh;
    block_tokens_ = options.block_tokens != 0 ? options.block_tokens
                    : is_slow                 ? kLongBlockTokens
                                              : kBlockTokens;
  }

  AddReport Run(const Snapshot* snapshot) {
    StateRecord& state = report_.state;
    if (!IsStateName(options_.name)) {
      throw Error(Finding::kBadName, "'{}' cannot be the name of a state", options_.name);
    }
    Describe(snapshot);
    if (IsStored()) return std::move(report_);
    const Guide guide = FindGuide(source_, state.files);
    state.guide = guide.id;
    if (guide.extent != nullptr) TakePrefix(guide);
    try {
      number_ = state.id = store_.NewNumber(options_.after);
      StoreRest();
      Commit();
    } catch (Error& error) {
      ExplainFullDisk(error);
      throw;
    }
    return std::move(report_);
  }

 private:
  void Describe(const Snapshot* snapshot) {
    StateRecord& state = report_.state;
    state.name = options_.name;
    state.added_us = options_.added_us;
    state.level = options_.effort;
    state.is_folder = source_.is_folder;
    state.empty_folders = source_.empty_folders;
    state.format = snapshot == nullptr ? "opaque" : snapshot->format;
    if (snapshot != nullptr) {
      state.model = snapshot->model;
      state.geometry = DescribeGeometry(*snapshot);
      state.tokens = CountTokens(*snapshot);
      state.layers = snapshot->layers.size();
    }
    state.files = CutIntoExtents(source_, snapshot);
    state.source_bytes = source_.total_bytes();
    if (options_.progress != nullptr) options_.progress->Begin(state.source_bytes);
    ByteWriter hashes;
    pool_.ParallelFor(state.files.size(), [&](uint64_t i) {
      state.files[i].hash = Hash64(source_.files[i].data->bytes());
    });
    for (const StoredFile& file : state.files) hashes.U64(file.hash);
    state.source_hash = state.is_folder ? Hash64(hashes.bytes()) : state.files[0].hash;
  }

  // Returns true if the newest state of this name is the same and can be restored.
  bool IsStored() {
    const std::optional<StateRow> newest = store_.index_->Newest(options_.name);
    newest_ = newest ? newest->id : 0;
    const StateRecord& state = report_.state;
    if (!newest || newest->source_hash != state.source_hash ||
        newest->source_bytes != state.source_bytes) {
      return false;
    }
    std::optional<StateRecord> record;
    try {
      record = store_.Load(*newest);
    } catch (const Error&) {
      return false;  // damaged: stored again
    }
    if (!Holds(*record) || !CanRestore(*record)) return false;
    report_.state.id = newest->id;
    return report_.was_there = true;
  }

  // Decodes everything a state needs, as `check` does: the source may be deleted once the state is
  // stored.
  bool CanRestore(const StateRecord& record) {
    std::set<ObjectId> ids;
    ForEachPiece(record, [&](const Extent&, const Piece& piece) { ids.insert(piece.id); });
    const std::vector<ObjectId> list(ids.begin(), ids.end());
    sound_.clear();  // other processes may have added objects since then
    std::atomic<bool> all = true;
    pool_.ParallelFor(list.size(), [&](uint64_t i) {
      if (!Has(list[i], options_.check)) all = false;
    });
    return all;
  }

  // Returns true if the store has the object undamaged. Otherwise it is stored again, replacing a
  // damaged one. Without `decode` only the payload's hash is compared, which is cheap: a growing
  // chat shares most of its objects at every save.
  bool Has(const ObjectId& id, bool decode = false) {
    {
      const std::lock_guard lock(mutex_);
      const auto known = sound_.find(id);
      if (known != sound_.end()) return known->second;
    }
    const std::optional<Place> place = store_.index_->Find(id);
    const bool is_sound = place && !store_.CheckObject(id, *place, decode);
    const std::lock_guard lock(mutex_);
    if (place && !is_sound) damaged_.insert(id);
    return sound_[id] = is_sound;
  }

  // Returns true if a record is of this source, judged by the ids of its objects: 64-bit hashes can
  // be forged.
  bool Holds(const StateRecord& record) {
    const std::vector<StoredFile>& own = report_.state.files;
    if (record.is_folder != source_.is_folder || record.files.size() != own.size() ||
        record.empty_folders != source_.empty_folders) {
      return false;
    }
    for (size_t i = 0; i < own.size(); ++i) {
      const StoredFile& file = record.files[i];
      if (file.name != own[i].name || file.size != own[i].size ||
          file.executable != own[i].executable) {
        return false;
      }
    }
    std::atomic<bool> same = true;
    pool_.ParallelFor(own.size(), [&](uint64_t i) {
      if (!HoldsFile(record.files[i], source_.files[i].data->bytes())) same = false;
    });
    return same;
  }

  static bool HoldsFile(const StoredFile& file, ByteSpan bytes) {
    Bytes raw;
    for (const Extent& extent : file.extents) {
      const ByteSpan own = bytes.first(extent.size());
      bytes = bytes.subspan(own.size());
      if (extent.kind == Extent::Kind::kLiteral) {
        if (!std::equal(own.begin(), own.end(), extent.literal.begin())) return false;
        continue;
      }
      uint64_t begin = 0;
      for (const Piece& piece : extent.pieces) {
        CopyOut(extent, own, begin, piece.count, raw);
        if (Blake2b256(raw) != piece.id) return false;
        begin += piece.count;
      }
    }
    return true;
  }

  // Returns the pieces at the beginning of `part` that `extent` has, too, if the store has them.
  std::vector<Piece> SharedPieces(const Extent& extent, ByteSpan bytes, const Extent& part) {
    std::vector<Piece> shared;
    if (!extent.SamePart(part)) return shared;
    Bytes raw;
    uint64_t begin = 0;
    for (const Piece& piece : part.pieces) {
      if (piece.count > extent.tokens - begin ||
          !IsWorthKeeping(extent, begin, piece.count, block_tokens_)) {
        break;
      }
      CopyOut(extent, bytes, begin, piece.count, raw);
      if (Blake2b256(raw) != piece.id || !Has(piece.id)) break;
      shared.push_back(piece);
      begin += piece.count;
    }
    return shared;
  }

  // Searches for the state with the longest common beginning, and takes over its pieces.
  void TakePrefix(const Guide& guide) {
    const size_t file = static_cast<size_t>(guide.file - report_.state.files.data());
    const Cut whole{file, 0, 0, 0, guide.offset};
    const ByteSpan bytes = BytesOf(source_, whole, *guide.extent);
    std::optional<StateRecord> parent;
    for (const StateRow& row :
         store_.index_->Candidates(guide.id, options_.name, kMostCandidates)) {
      if (report_.prefix_tokens == guide.extent->tokens) break;
      std::optional<StateRecord> record;
      try {
        record = store_.Load(row);
      } catch (const Error&) {
        continue;  // a damaged state is no reference, but does no harm
      }
      const auto parts = MapParts(*record);
      const auto same = parts.find(NamePart(*guide.extent));
      if (same == parts.end()) continue;
      const uint64_t tokens = SumCounts(SharedPieces(*guide.extent, bytes, *same->second));
      if (tokens <= report_.prefix_tokens) continue;
      report_.prefix_tokens = tokens;
      report_.parent = row.id;
      parent = std::move(record);
    }
    if (parent) TakePieces(*parent);
  }

  void TakePieces(const StateRecord& parent) {
    const auto parts = MapParts(parent);
    struct Pair {
      Extent* extent;
      const Extent* part;
      ByteSpan bytes;
    };
    std::vector<Pair> pairs;
    for (size_t i = 0; i < report_.state.files.size(); ++i) {
      uint64_t offset = 0;
      for (Extent& extent : report_.state.files[i].extents) {
        const uint64_t size = extent.size();
        if (extent.kind == Extent::Kind::kTensor) {
          const auto same = parts.find(NamePart(extent));
          if (same != parts.end()) {
            const ByteSpan all = source_.files[i].data->bytes();
            pairs.push_back({&extent, same->second, all.subspan(offset, size)});
          }
        }
        offset += size;
      }
    }
    pool_.ParallelFor(pairs.size(), [&](uint64_t i) {
      pairs[i].extent->pieces = SharedPieces(*pairs[i].extent, pairs[i].bytes, *pairs[i].part);
    });
    for (const Pair& pair : pairs) {
      for (const Piece& piece : pair.extent->pieces) Shared(pair.extent->BytesOf(piece));
    }
  }

  void Shared(uint64_t bytes) {
    ++report_.shared_objects;
    report_.shared_raw_bytes += bytes;
    if (options_.progress != nullptr) options_.progress->Advance(bytes);
  }

  std::optional<Cut> Next() {
    std::vector<StoredFile>& files = report_.state.files;
    for (; next_.file < files.size(); ++next_.file, next_.extent = 0, next_.offset = 0) {
      const std::vector<Extent>& extents = files[next_.file].extents;
      while (next_.extent < extents.size()) {
        const Extent& extent = extents[next_.extent];
        if (extent.kind != Extent::Kind::kLiteral) {
          const bool is_tensor = extent.kind == Extent::Kind::kTensor;
          const uint64_t end = is_tensor ? extent.tokens : extent.bytes;
          if (!is_begun_) next_.begin = SumCounts(extent.pieces);
          is_begun_ = true;
          if (next_.begin < end) {
            Cut cut = next_;
            next_.begin = EndOfPiece(extent, cut.begin, block_tokens_);
            cut.count = next_.begin - cut.begin;
            return cut;
          }
        }
        is_begun_ = false;
        next_.offset += extent.size();
        ++next_.extent;
      }
    }
    return std::nullopt;
  }

  CutObject Encode(const Cut& cut) {
    const Reuse<Workspace>::Lease lease(workspaces_);
    Workspace& work = *lease;
    const Extent& extent = report_.state.files[cut.file].extents[cut.extent];
    CopyOut(extent, BytesOf(source_, cut, extent), cut.begin, cut.count, work.raw);
    CutObject object;
    object.cut = cut;
    ObjectHead& head = object.head;
    head.id = Blake2b256(work.raw);
    head.raw_bytes = work.raw.size();
    object.is_known = Has(head.id);
    if (object.is_known) return object;
    head.raw_hash = Hash64(work.raw);
    head.shape = MakeChunkShape(extent, cut.count);
    head.level = options_.effort;
    EncodedChunk chunk = EncodeChunk(head.shape, work.raw, options_.effort, work.codec);
    head.codec = chunk.codec;
    if (options_.check) {
      work.decoded.resize(work.raw.size());
      DecodeChunk(chunk.codec, head.shape, chunk.payload, work.decoded, work.codec);
      if (work.decoded != work.raw)
        throw Error(Finding::kInternal, "an object does not decode to what was encoded");
    }
    head.payload_bytes = chunk.payload.size();
    head.payload_hash = Hash64(chunk.payload);
    object.payload = std::move(chunk.payload);
    return object;
  }

  void Emit(CutObject& object) {
    Extent& extent = report_.state.files[object.cut.file].extents[object.cut.extent];
    const ObjectHead& head = object.head;
    extent.pieces.push_back({head.id, object.cut.count});
    if (object.is_known || !written_.insert(head.id).second) return Shared(head.raw_bytes);
    if (!pack_) {
      pack_.emplace(store_.packs(), PackName(report_.state.id));
      pack_->Write(PackHeader());
    }
    objects_.push_back({head.id, pack_->size(), head.stored_bytes(), head.raw_bytes, head.level});
    pack_->Write(HeadBytes(head));
    pack_->Write(object.payload);
    ++report_.new_objects;
    report_.new_raw_bytes += head.raw_bytes;
    if (options_.progress != nullptr) options_.progress->Advance(head.raw_bytes);
  }

  void StoreRest() {
    constexpr uint64_t kWindowPerThread = 4;
    pool_.RunOrdered<Cut, CutObject>(
        kWindowPerThread * static_cast<uint64_t>(pool_.threads()), [this] { return Next(); },
        [this](Cut& cut) { return Encode(cut); }, [this](CutObject& object) { Emit(object); });
  }

  // Writes data to the disk before the index refers to it.
  void Commit() {
    source_.RequireUnchanged();
    try {
      if (pack_) {
        report_.state.own_bytes = pack_->size();
        pack_->Commit();
      }
      const Bytes bytes = kv::store::Encode(report_.state);
      NewFile record(store_.states(), RecordName(number_));
      record.Write(bytes);
      record.Commit();
      report_.record_bytes = bytes.size();
      for (const NewObject& object : objects_) report_.mended_objects += damaged_.count(object.id);
      while (!store_.index_->Add(report_.state, bytes.size(), Hash64(bytes), objects_,
                                 report_.mended_objects > 0, newest_)) {
        if (IsStored()) return YieldToOtherRun();
      }
    } catch (...) {
      Withdraw();
      throw;
    }
  }

  // Handles the case that another run has added the same state meanwhile.
  void YieldToOtherRun() {
    AddReport there;
    there.state = std::move(report_.state);
    there.state.own_bytes = 0;
    there.was_there = true;
    report_ = std::move(there);
    Withdraw();
  }

  // Removes the files of a state that is not listed. If only syncing the folder failed, the state
  // may have been added nevertheless, so the index is asked.
  void Withdraw() {
    try {
      for (const StateRow& row : store_.States()) {
        if (row.id == number_) return;
      }
      store_.states().Remove(RecordName(number_));
      store_.packs().Remove(PackName(number_));
    } catch (const std::exception&) {
      // The files stay: a repair will list the state.
    }
  }

  // Adds the required space to an error about a full disk, estimated from the objects so far.
  void ExplainFullDisk(Error& error) {
    if (error.finding() != Finding::kWriteFailed) return;
    uint64_t needed = report_.state.source_bytes;
    needed -= std::min(needed, report_.shared_raw_bytes);
    if (report_.new_raw_bytes > 0) {
      needed =
          static_cast<uint64_t>(static_cast<double>(needed) * static_cast<double>(pack_->size()) /
                                static_cast<double>(report_.new_raw_bytes));
    }
    pack_.reset();  // frees its space
    const uint64_t free = store_.FreeBytes();
    needed += store_.IndexBytes();  // for its journal
    if (free >= needed) return;
    error.Hint(
        "adding the state takes about {} bytes of the disk, and {} are free: 'kvtool store prune' "
        "frees some, or make a store on another disk",
        needed, free);
  }

  Store& store_;
  const Source& source_;
  const AddOptions& options_;
  ThreadPool& pool_;
  uint64_t block_tokens_;
  AddReport report_;
  uint64_t number_ = 0;  // number of the state, if it is added
  uint64_t newest_ = 0;  // the state of this name that the source was compared with; 0: none
  std::mutex mutex_;
  std::map<ObjectId, bool> sound_;  // earlier results of Has
  std::set<ObjectId> damaged_;
  Cut next_;
  bool is_begun_ = false;
  Reuse<Workspace> workspaces_;
  std::optional<NewFile> pack_;
  std::set<ObjectId> written_;
  std::vector<NewObject> objects_;
};

AddReport Store::Add(const Source& source, const Snapshot* snapshot, const AddOptions& options,
                     ThreadPool& pool) {
  return Adder(*this, source, options, pool).Run(snapshot);
}

namespace {

// The next part of a file: a literal, or one object.
struct Step {
  const Extent* extent = nullptr;
  const Piece* piece = nullptr;  // nullptr: the literal
  uint64_t begin = 0;
  bool is_last = false;  // last step of its extent
};

struct Loaded {
  Step step;
  Bytes raw;
};

std::vector<Step> ListSteps(const StoredFile& file) {
  std::vector<Step> steps;
  for (const Extent& extent : file.extents) {
    if (extent.kind == Extent::Kind::kLiteral) steps.push_back({&extent, nullptr, 0, true});
    uint64_t begin = 0;
    for (const Piece& piece : extent.pieces) {
      steps.push_back({&extent, &piece, begin, &piece == &extent.pieces.back()});
      begin += piece.count;
    }
  }
  return steps;
}

// Returns the bytes of the largest object; at least 1.
uint64_t FindLargest(const std::vector<Step>& steps) {
  uint64_t largest = 1;
  for (const Step& step : steps) {
    if (step.piece != nullptr) largest = std::max(largest, step.extent->BytesOf(*step.piece));
  }
  return largest;
}

// Writes loaded data in order. Tensors that are not stored token by token are assembled first.
class FileWriter {
 public:
  explicit FileWriter(Sink& sink) : sink_(sink) {}

  void Take(const Loaded& loaded) {
    const Step& step = loaded.step;
    const Extent& extent = *step.extent;
    if (step.piece == nullptr) return Write(extent.literal);
    if (extent.in_order()) return Write(loaded.raw);
    tensor_.resize(extent.size());
    ScatterRows(extent, loaded.raw, step.begin, step.piece->count, tensor_);
    if (!step.is_last) return;
    Write(tensor_);
    tensor_ = Bytes();
  }
  uint64_t hash() const { return hash_.Digest(); }

 private:
  void Write(ByteSpan bytes) {
    hash_.Update(bytes);
    sink_.Write(bytes);
  }

  Sink& sink_;
  StreamingHash hash_;
  Bytes tensor_;
};

}  // namespace

void Store::Restore(const StateRecord& record, RestoreTarget& target, ThreadPool& pool,
                    Progress* progress) {
  if (progress != nullptr) progress->Begin(record.source_bytes);
  Reuse<CodecScratch> scratches;
  constexpr uint64_t kWindowPerThread = 4, kWindowBytes = uint64_t{256} << 20;
  const auto threads = static_cast<uint64_t>(pool.threads());
  for (size_t i = 0; i < record.files.size(); ++i) {
    const StoredFile& file = record.files[i];
    const std::vector<Step> steps = ListSteps(file);
    size_t next = 0;
    // Objects may have 16 MiB each, and only a few bytes on the disk.
    const uint64_t window =
        std::max(threads, std::min(kWindowPerThread * threads, kWindowBytes / FindLargest(steps)));
    FileWriter writer(target.Begin(i));
    pool.RunOrdered<Step, Loaded>(
        window,
        [&]() -> std::optional<Step> {
          if (next == steps.size()) return std::nullopt;
          return steps[next++];
        },
        [&](Step& step) {
          Loaded loaded{step, {}};
          if (step.piece == nullptr) return loaded;
          const Reuse<CodecScratch>::Lease scratch(scratches);
          LoadObject(step.piece->id, step.extent->BytesOf(*step.piece), *scratch, loaded.raw);
          return loaded;
        },
        [&](Loaded& loaded) {
          writer.Take(loaded);
          if (progress != nullptr) progress->Advance(loaded.raw.size());
        });
    if (writer.hash() != file.hash) {
      throw Error(Finding::kContentDiffers, "the restored bytes are not those that were added")
          .File(file.name.empty() ? record.name : file.name);
    }
    target.End(i);
  }
}

}  // namespace kv::store
