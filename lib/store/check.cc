// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "lib/core/base/arena.h"
#include "lib/core/base/hash.h"
#include "lib/store/store.h"

namespace kv::store {

namespace {

// Temporary read errors are rethrown: otherwise a repair would discard sound objects as damaged,
// and a collection would remove them. Errors about a newer codec are rethrown, too, because such an
// object is not damaged; a newer file version counts as damage, which one flipped bit can cause.
Problem DescribeProblem(const std::string& where, const Error& error) {
  const bool is_later =
      error.code() == ErrorCode::kUnsupported && error.finding() != Finding::kUnsupportedVersion;
  if (error.code() == ErrorCode::kIo || is_later) {
    throw Error(error).File(error.file().empty() ? where : error.file());
  }
  return {error.file().empty() ? where : error.file(), error.message(), error.finding()};
}

// Returns true if a state can be restored from objects of these sizes.
bool IsWhole(const StateRecord& record, const std::map<ObjectId, uint64_t>& sizes) {
  bool is_whole = true;
  ForEachPiece(record, [&](const Extent& extent, const Piece& piece) {
    const auto size = sizes.find(piece.id);
    is_whole = is_whole && size != sizes.end() && size->second == extent.BytesOf(piece);
  });
  return is_whole;
}

StateRow RowFor(const StateRecord& record, uint64_t bytes) {
  StateRow row;
  row.id = record.id;
  row.name = record.name;
  row.added_us = record.added_us;
  row.source_bytes = record.source_bytes;
  row.record_bytes = bytes;
  return row;
}

void RequireWithin(uint64_t most, uint64_t decoded, const std::string& folder) {
  if (decoded <= most) return;
  throw Error(Finding::kLimit, "the objects decode to {} bytes, the limit is {}", decoded, most)
      .File(folder);
}

// An object as a pack claims it, which may be false.
struct Claim {
  std::shared_ptr<const FileSource> pack;
  uint64_t number = 0, offset = 0;
  ObjectHead head;
  std::optional<Problem> problem;
};

// Lists all objects that a pack seems to hold.
void Walk(const std::shared_ptr<const FileSource>& pack, uint64_t number,
          std::vector<Claim>& claims, std::vector<Problem>& problems) {
  uint64_t at = kPackHeaderBytes;
  while (at < pack->size()) {
    try {
      const ObjectHead head = ReadObjectHead(*pack, at);
      claims.push_back({pack, number, at, head, std::nullopt});
      at += head.stored_bytes();
    } catch (const Error& error) {
      problems.push_back(DescribeProblem(pack->name(), error));
      at = FindObject(*pack, at + 1);
    }
  }
}

}  // namespace

std::optional<Problem> Store::CheckObject(const ObjectId& id, const Place& place, bool decode) {
  const std::string where = PackPath(place.pack);
  try {
    const auto pack = Pack(place.pack);
    const ObjectHead head = ReadObjectHead(*pack, place.offset);
    if (!decode) {
      if (head.id != id) throw Error(Finding::kInconsistent, "the index points to another object");
      CheckPayload(*pack, place.offset, head);
      return std::nullopt;
    }
    CodecScratch scratch;
    Bytes raw;
    LoadObject(id, head.raw_bytes, scratch, raw);
    if (Blake2b256(raw) != id)
      throw Error(Finding::kContentDiffers,
                  "object {}: content differs from its name, which is its hash", Hex(id));
    return std::nullopt;
  } catch (const Error& error) {
    return DescribeProblem(where, error);
  }
}

// Returns the decoded size of all objects whose headers can be read.
uint64_t Store::DecodedBytes(const std::map<ObjectId, Place>& objects) {
  uint64_t bytes = 0;
  for (const auto& [id, place] : objects) {
    try {
      bytes += ReadObjectHead(*Pack(place.pack), place.offset).raw_bytes;
    } catch (const Error&) {
      // Damage is reported when the object is decoded.
    }
  }
  return bytes;
}

CheckReport Store::Check(ThreadPool& pool, Progress* progress, uint64_t most) {
  CheckReport report;
  // Reads the states before the objects: a state added meanwhile could refer to objects that are
  // not checked.
  const std::vector<StateRow> rows = States();
  const std::map<ObjectId, Place> objects = index_->Objects();
  std::vector<std::pair<ObjectId, Place>> list(objects.begin(), objects.end());
  std::vector<std::optional<Problem>> problems(list.size());
  if (most != kNoLimit) RequireWithin(most, DecodedBytes(objects), folder_);
  uint64_t total = 0;
  for (const auto& [id, place] : list) total += place.stored_bytes;
  if (progress != nullptr) progress->Begin(total);
  pool.ParallelFor(list.size(), [&](uint64_t i) {
    problems[i] = CheckObject(list[i].first, list[i].second);
    if (progress != nullptr) progress->Advance(list[i].second.stored_bytes);
  });
  std::map<ObjectId, uint64_t> sizes;
  for (size_t i = 0; i < list.size(); ++i) {
    const Place& place = list[i].second;
    ++report.objects;
    report.stored_bytes += place.stored_bytes;
    if (problems[i]) {
      report.problems.push_back(*problems[i]);
      continue;
    }
    const uint64_t bytes = ReadObjectHead(*Pack(place.pack), place.offset).raw_bytes;
    sizes[list[i].first] = bytes;
    report.raw_bytes += bytes;
  }
  std::set<uint64_t> states;
  for (const StateRow& row : rows) {
    ++report.states;
    states.insert(row.id);
    try {
      if (IsWhole(Load(row), sizes)) continue;
    } catch (const Error& error) {
      report.problems.push_back(DescribeProblem(RecordPath(row.id), error));
    }
    report.damaged.push_back(row);
  }
  const std::map<uint64_t, uint64_t> packs = index_->Packs();
  for (const auto& [number, bytes] : PackFiles()) {
    const auto known = packs.find(number);
    if (known == packs.end() || known->second == bytes) continue;
    report.problems.push_back(
        {PackPath(number),
         fmt::format("the pack has {} bytes, {} were written", bytes, known->second),
         Finding::kSizeMismatch});
  }
  Leftovers left = FindLeftovers(!report.damaged.empty());
  report.leftover_files = left.packs.size() + left.records.size();
  report.leftover_bytes = left.bytes;
  report.unlisted = std::move(left.unlisted);
  return report;
}

Leftovers Store::FindLeftovers(bool any_missing) {
  Leftovers left;
  // Lists the files before reading the index: a file added in between is then in the index.
  const std::map<uint64_t, uint64_t> pack_files = PackFiles(), record_files = RecordFiles();
  const std::map<uint64_t, uint64_t> packs = index_->Packs();
  std::set<uint64_t> listed;
  for (const StateRow& row : States()) listed.insert(row.id);
  for (const auto& [number, bytes] : record_files) {
    if (listed.contains(number)) continue;
    try {
      const auto file = states().OpenFile(RecordName(number));
      if (file == nullptr) continue;  // removed meanwhile
      const StateRecord record = DecodeState(file->bytes());
      ForEachPiece(record,
                   [&](const Extent&, const Piece& piece) { left.needed.insert(piece.id); });
      left.unlisted.push_back(RowFor(record, bytes));
    } catch (const Error& error) {
      DescribeProblem(RecordPath(number), error);  // rethrows temporary errors
      left.records.push_back(number);
      left.bytes += bytes;
    }
  }
  if (any_missing || !left.unlisted.empty()) return left;
  for (const auto& [number, bytes] : pack_files) {
    if (packs.contains(number)) continue;
    left.packs.push_back(number);
    left.bytes += bytes;
  }
  return left;
}

// Returns states with intact records that the index does not list: removed ones, and ones whose
// adding was interrupted. Without an intact index these cannot be told apart.
std::vector<StateRow> Store::Unlisted(const Index::Contents& contents) const {
  std::set<uint64_t> listed;
  try {
    for (const StateRow& row :
         Index(*root_, std::string(kIndexName), Database::Use::kRead).States())
      listed.insert(row.id);
  } catch (const Error&) {
    return {};
  }
  std::vector<StateRow> unlisted;
  for (const Index::Contents::Listed& state : contents.states) {
    if (!listed.contains(state.record.id)) unlisted.push_back(RowFor(state.record, state.bytes));
  }
  return unlisted;
}

namespace {

// Decodes every claimed object, and notes the problem of each that is not what it claims.
void DecodeClaims(ThreadPool& pool, std::vector<Claim>& claims) {
  Reuse<CodecScratch> scratches;
  pool.ParallelFor(claims.size(), [&](uint64_t i) {
    Claim& claim = claims[i];
    try {
      const Reuse<CodecScratch>::Lease scratch(scratches);
      Bytes raw;
      DecodeObject(*claim.pack, claim.offset, claim.head, *scratch, raw);
      if (Blake2b256(raw) != claim.head.id)
        throw Error(Finding::kContentDiffers,
                    "an object's content differs from its name, which is its hash");
    } catch (const Error& error) {
      claim.problem = DescribeProblem(claim.pack->name(), error);
    }
  });
}

// Adds the first undamaged copy of each object to the contents. Returns their decoded sizes.
std::map<ObjectId, uint64_t> KeepSoundObjects(const std::vector<Claim>& claims,
                                              Index::Contents& contents, CheckReport& report) {
  std::map<ObjectId, uint64_t> sizes;
  for (const Claim& claim : claims) {
    const ObjectHead& head = claim.head;
    if (claim.problem) continue;
    const NewObject object{head.id, claim.offset, head.stored_bytes(), head.raw_bytes, head.level};
    if (!contents.objects.emplace(head.id, std::pair(claim.number, object)).second) continue;
    sizes[head.id] = head.raw_bytes;
    ++report.objects;
    report.raw_bytes += head.raw_bytes;
    report.stored_bytes += head.stored_bytes();
  }
  // A damaged object does not matter if its source was added again.
  for (const Claim& claim : claims) {
    if (claim.problem && !sizes.contains(claim.head.id)) report.problems.push_back(*claim.problem);
  }
  return sizes;
}

}  // namespace

CheckReport Store::Mend(ThreadPool& pool, uint64_t most) {
  CheckReport report;
  Index::Contents contents;
  std::vector<Claim> claims;
  for (const auto& [number, bytes] : PackFiles()) {
    contents.packs[number] = bytes;
    try {
      Walk(Pack(number), number, claims, report.problems);
    } catch (const Error& error) {
      report.problems.push_back(DescribeProblem(PackPath(number), error));
    }
  }
  uint64_t decoded = 0;
  for (const Claim& claim : claims) decoded += claim.head.raw_bytes;
  RequireWithin(most, decoded, folder_);
  DecodeClaims(pool, claims);
  const std::map<ObjectId, uint64_t> sizes = KeepSoundObjects(claims, contents, report);
  for (const auto& [number, bytes] : RecordFiles()) {
    try {
      const auto file = states().OpenFile(RecordName(number));
      if (file == nullptr) throw Error(Finding::kMissingRecord, "the record is missing");
      Index::Contents::Listed listed{DecodeState(file->bytes()), bytes, Hash64(file->bytes())};
      if (listed.record.id != number)
        throw Error(Finding::kInconsistent, "the record belongs to another state");
      ++report.states;
      if (!IsWhole(listed.record, sizes)) report.damaged.push_back(RowFor(listed.record, bytes));
      contents.states.push_back(std::move(listed));
    } catch (const Error& error) {
      report.problems.push_back(DescribeProblem(RecordPath(number), error));
    }
  }
  for (const StateRow& row : Unlisted(contents)) report.relisted.push_back(row);
  NameIndex(contents);
  index_ = std::make_unique<Index>(*root_, std::string(kIndexName), Database::Use::kWrite);
  return report;
}

namespace {

// A pack is rewritten if more than one byte in this many is unused.
constexpr uint64_t kRewriteOneIn = 4;

uint64_t SumSizes(const std::map<uint64_t, uint64_t>& files) {
  uint64_t sum = 0;
  for (const auto& [number, bytes] : files) sum += bytes;
  return sum;
}

}  // namespace

std::set<ObjectId> Store::LiveObjects() {
  std::set<ObjectId> live;
  for (const StateRow& row : States()) {
    try {
      ForEachPiece(Load(row), [&](const Extent&, const Piece& piece) { live.insert(piece.id); });
    } catch (Error& error) {
      throw error.Hint(
          "nothing is removed while it is unknown what this state needs; 'kvtool "
          "store verify --repair' gives up what cannot be read");
    }
  }
  return live;
}

// Throws if the index names packs or objects that do not exist: it is outdated or forged, and
// objects that it does not name may be the only ones left.
void Store::RequirePacks(const std::map<uint64_t, uint64_t>& packs, const Kept& kept,
                         const std::set<ObjectId>& missing) {
  const std::map<uint64_t, uint64_t> files = PackFiles();
  uint64_t pack = 0;
  const auto fail = [&](std::string_view text) {
    throw Error(Finding::kLostChunk, "{}", text)
        .File(PackPath(pack))
        .Hint("nothing is removed from such a store; " + std::string(kRepairHint));
  };
  for (const auto& [number, objects] : kept) {
    pack = number;
    const auto known = packs.find(pack), file = files.find(pack);
    if (known == packs.end() || file == files.end() || known->second != file->second)
      fail("a pack that states need is missing or has another size");
    for (const auto& [id, place] : objects) {
      if (!LiesAt(id, place)) fail("an object that a state needs is not where the index says");
    }
  }
  for (const auto& [number, bytes] : packs) {
    pack = number;
    if (!missing.empty() && HoldsAny(pack, missing))
      fail("the index does not name an object that a state needs and this pack holds");
  }
}

// Returns true if the header of the object is at its place.
bool Store::LiesAt(const ObjectId& id, const Place& place) {
  try {
    return ReadObjectHead(*Pack(place.pack), place.offset).id == id;
  } catch (const Error& error) {
    DescribeProblem(PackPath(place.pack), error);  // rethrows temporary errors
    return false;
  }
}

// Returns true if a pack holds one of these objects undamaged.
bool Store::HoldsAny(uint64_t pack, const std::set<ObjectId>& ids) {
  std::vector<Claim> claims;
  std::vector<Problem> problems;
  try {
    Walk(Pack(pack), pack, claims, problems);
  } catch (const Error& error) {
    DescribeProblem(PackPath(pack), error);  // rethrows temporary errors
  }
  return std::any_of(claims.begin(), claims.end(), [&](const Claim& claim) {
    return ids.contains(claim.head.id) &&
           !CheckObject(claim.head.id, {pack, claim.offset, claim.head.stored_bytes()}, false);
  });
}

void Store::Apply(const Index::Change& change) {
  index_->Apply(change);
  opened_.clear();
  for (const uint64_t pack : change.packs_gone) packs().Remove(PackName(pack));
}

CollectReport Store::Collect() {
  CollectReport report;
  const auto disk = [&] { return SumSizes(PackFiles()) + SumSizes(RecordFiles()) + IndexBytes(); };
  report.before_bytes = disk();
  std::set<ObjectId> live = LiveObjects();
  const std::map<ObjectId, Place> objects = index_->Objects();
  const auto is_missing = [&](const ObjectId& id) { return !objects.contains(id); };
  Leftovers left = FindLeftovers(std::any_of(live.begin(), live.end(), is_missing));
  live.merge(left.needed);
  std::set<ObjectId> missing;
  std::copy_if(live.begin(), live.end(), std::inserter(missing, missing.end()), is_missing);
  const std::map<uint64_t, uint64_t> packs = index_->Packs();
  Kept kept;
  Index::Change change;
  for (const auto& [id, place] : objects) {
    if (live.contains(id)) {
      kept[place.pack].emplace_back(id, place);
    } else {
      change.gone.push_back(id);
    }
  }
  RequirePacks(packs, kept, missing);
  for (const auto& [pack, bytes] : packs) {
    if (!kept.contains(pack)) change.packs_gone.push_back(pack);
  }
  report.removed_objects = change.gone.size();
  report.removed_packs = change.packs_gone.size();
  // Begins with changes that free space and take none: the disk may be full.
  Apply(change);
  report.leftover_files = RemoveLeftovers(left);
  RewritePacks(kept, packs, report);
  report.unlisted = std::move(left.unlisted);
  report.after_bytes = disk();
  return report;
}

uint64_t Store::RemoveLeftovers(const Leftovers& left) {
  uint64_t removed = 0;
  for (const uint64_t pack : left.packs) removed += packs().Remove(PackName(pack));
  for (const uint64_t record : left.records) removed += states().Remove(RecordName(record));
  for (const Folder* folder : {&std::as_const(*root_), &packs(), &states()}) {
    for (const std::string& name : folder->Names()) {
      if (IsTemporaryName(name)) removed += folder->Remove(name);
    }
  }
  return removed;
}

void Store::CopyObjects(uint64_t pack, const Kept::mapped_type& objects, NewFile& to,
                        Index::Change& change) {
  const auto from = Pack(pack);
  for (const auto& [id, place] : objects) {
    if (const auto problem = CheckObject(id, place, false)) {
      throw Error(Finding::kChecksum, "an object that a state needs is damaged: {}", problem->text)
          .File(problem->where)
          .At(place.offset)
          .Hint("'kvtool store verify' lists the affected states and how to repair them");
    }
    const ObjectHead head = ReadObjectHead(*from, place.offset);
    change.moved.push_back({id, to.size(), head.stored_bytes(), head.raw_bytes, head.level});
    to.Write(from->bytes().subspan(place.offset, head.stored_bytes()));
  }
}

// Copies the needed objects out of packs with much waste.
void Store::RewritePacks(const Kept& kept, const std::map<uint64_t, uint64_t>& packs,
                         CollectReport& report) {
  Index::Change change;
  std::optional<NewFile> fresh;
  uint64_t room = FreeBytes();
  for (const auto& [pack, objects] : kept) {
    const uint64_t bytes = packs.at(pack);
    uint64_t used = 0;
    for (const auto& [id, place] : objects) used += place.stored_bytes;
    if (bytes - std::min(used, bytes) <= bytes / kRewriteOneIn) continue;
    if (used > room) {
      ++report.skipped_packs;
      continue;
    }
    room -= used;
    if (!fresh) {
      change.pack = NewNumber();
      fresh.emplace(this->packs(), PackName(*change.pack));
      fresh->Write(PackHeader());
    }
    CopyObjects(pack, objects, *fresh, change);
    change.packs_gone.push_back(pack);
  }
  if (!fresh) return;
  change.pack_bytes = fresh->size();
  fresh->Commit();
  report.rewritten_packs = change.packs_gone.size();
  Apply(change);
}

std::vector<StateRow> Store::Older(uint64_t keep_last, const std::set<std::string>& names) {
  std::map<std::string, std::vector<StateRow>> by_name;
  for (StateRow& row : States()) {
    if (names.empty() || names.contains(row.name)) by_name[row.name].push_back(std::move(row));
  }
  for (const std::string& name : names) {
    if (!by_name.contains(name)) Find(name);  // throws
  }
  std::vector<StateRow> older;
  for (auto& [name, rows] : by_name) {
    const uint64_t surplus = rows.size() - std::min<uint64_t>(keep_last, rows.size());
    for (uint64_t i = 0; i < surplus; ++i) older.push_back(std::move(rows[i]));
  }
  return older;
}

void Store::Remove(const std::vector<StateRow>& states) {
  std::vector<uint64_t> ids;
  for (const StateRow& row : states) ids.push_back(row.id);
  index_->RemoveStates(ids);
  for (const uint64_t id : ids) this->states().Remove(RecordName(id));
}

}  // namespace kv::store
