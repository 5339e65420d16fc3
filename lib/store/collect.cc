// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/core/base/hash.h"
#include "lib/store/store.h"

namespace kv::store {
namespace {

// A pack is written anew where more than one byte in so many is of no use.
constexpr uint64_t kRewriteOneIn = 4;

uint64_t SumOf(const std::map<uint64_t, uint64_t>& files) {
  uint64_t sum = 0;
  for (const auto& [number, bytes] : files) sum += bytes;
  return sum;
}

}  // namespace

std::set<ObjectId> Store::LiveObjects() {
  std::set<ObjectId> live;
  for (const StateRow& row : States()) {
    try {
      for (const StoredFile& file : Load(row).files) {
        for (const Extent& extent : file.extents) {
          for (const Piece& piece : extent.pieces) live.insert(piece.id);
        }
      }
    } catch (Error& error) {
      throw error.Hint(
          "nothing is removed while it is unknown what this state needs; 'kvtool "
          "store verify --repair' gives up what cannot be read");
    }
  }
  return live;
}

// An index that names packs which are not there is another time's: what it does not name may be
// all that is left.
void Store::RequirePacks(const std::map<uint64_t, uint64_t>& packs,
                         const std::set<uint64_t>& needed) const {
  const std::map<uint64_t, uint64_t> files = PackFiles();
  for (const uint64_t pack : needed) {
    const auto known = packs.find(pack), file = files.find(pack);
    if (known != packs.end() && file != files.end() && known->second == file->second) continue;
    throw Error(Finding::kLostChunk, "a pack that states need is missing or has another size")
        .File(PackPath(pack))
        .Hint("nothing is removed from such a store; " + std::string(kRepairHint));
  }
}

CollectReport Store::Collect() {
  CollectReport report;
  const auto disk = [&] { return SumOf(PackFiles()) + SumOf(RecordFiles()) + IndexBytes(); };
  report.before_bytes = disk();
  std::set<ObjectId> live = LiveObjects();
  const std::map<ObjectId, Place> objects = index_->Objects();
  const bool any_missing = std::any_of(live.begin(), live.end(),
                                       [&](const ObjectId& id) { return !objects.contains(id); });
  Leftovers left = FindLeftovers(any_missing);
  live.merge(left.needed);
  const std::map<uint64_t, uint64_t> packs = index_->Packs();
  std::map<uint64_t, std::vector<std::pair<ObjectId, Place>>> kept;
  std::set<uint64_t> needed_packs;
  Index::Change change;
  for (const auto& [id, place] : objects) {
    if (live.contains(id)) {
      kept[place.pack].emplace_back(id, place);
      needed_packs.insert(place.pack);
    } else {
      change.gone.push_back(id);
    }
  }
  RequirePacks(packs, needed_packs);
  std::optional<NewFile> fresh;
  const uint64_t number = NewNumber();
  for (const auto& [pack, bytes] : packs) {
    const auto needed = kept.find(pack);
    uint64_t used = 0;
    if (needed != kept.end()) {
      for (const auto& [id, place] : needed->second) used += place.stored_bytes;
    }
    if (used > 0 && bytes - std::min(used, bytes) <= bytes / kRewriteOneIn) continue;
    if (used > 0) {
      if (!fresh) {
        fresh.emplace(this->packs(), PackName(number));
        fresh->Write(PackHeader());
      }
      const auto from = Pack(pack);
      for (const auto& [id, place] : needed->second) {
        const ObjectHead head = ReadObjectHead(*from, place.offset);
        const ByteSpan all = from->bytes().subspan(place.offset, head.stored_bytes());
        if (head.id != id || Hash64(all.subspan(kObjectHeadBytes)) != head.payload_hash) {
          throw Error(Finding::kChecksum, "an object that a state needs is damaged")
              .File(from->name())
              .At(place.offset)
              .Hint("'kvtool store verify' says which states it costs");
        }
        change.moved.push_back({id, fresh->size(), all.size(), head.raw_bytes, head.level});
        fresh->Write(all);
      }
      ++report.rewritten_packs;
    } else {
      ++report.removed_packs;
    }
    change.packs_gone.push_back(pack);
  }
  if (fresh) {
    change.pack = number;
    change.pack_bytes = fresh->size();
    fresh->Commit();
  }
  report.removed_objects = change.gone.size();
  index_->Apply(change);
  opened_.clear();
  for (const uint64_t pack : change.packs_gone) this->packs().Remove(PackName(pack));
  for (const uint64_t pack : left.packs)
    report.leftover_files += this->packs().Remove(PackName(pack));
  for (const uint64_t record : left.records)
    report.leftover_files += states().Remove(RecordName(record));
  for (const Folder* folder : {&this->packs(), &states()}) {
    for (const std::string& name : folder->Names()) {
      if (IsTemporaryName(name)) report.leftover_files += folder->Remove(name);
    }
  }
  report.unlisted = std::move(left.unlisted);
  report.after_bytes = disk();
  return report;
}

std::vector<StateRow> Store::Prune(uint64_t keep_last, const std::set<std::string>& names) {
  std::map<std::string, std::vector<StateRow>> by_name;
  for (StateRow& row : States()) {
    if (names.empty() || names.contains(row.name)) by_name[row.name].push_back(std::move(row));
  }
  for (const std::string& name : names) {
    if (!by_name.contains(name)) Find(name);  // throws
  }
  std::vector<StateRow> removed;
  std::vector<uint64_t> ids;
  for (auto& [name, rows] : by_name) {
    const uint64_t surplus = rows.size() - std::min<uint64_t>(keep_last, rows.size());
    for (uint64_t i = 0; i < surplus; ++i) {
      ids.push_back(rows[i].id);
      removed.push_back(std::move(rows[i]));
    }
  }
  index_->RemoveStates(ids);
  for (const uint64_t id : ids) states().Remove(RecordName(id));
  return removed;
}

}  // namespace kv::store
