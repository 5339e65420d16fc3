// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <unistd.h>

#include <algorithm>

#include "lib/core/base/hash.h"
#include "lib/core/base/output.h"
#include "lib/core/store/store.h"

namespace kv::store {
namespace fs = std::filesystem;
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

// Files that the index does not name, of runs that were killed.
uint64_t Store::RemoveLeftFiles(const std::map<uint64_t, uint64_t>& packs) {
  uint64_t removed = 0;
  std::set<uint64_t> states;
  for (const StateRow& row : States()) states.insert(row.id);
  for (const auto& [number, bytes] : FilesIn("packs", ".pack")) {
    if (!packs.contains(number) && ::unlink(PackPath(number).c_str()) == 0) ++removed;
  }
  for (const auto& [number, bytes] : FilesIn("states", ".kvs")) {
    if (!states.contains(number) && ::unlink(RecordPath(number).c_str()) == 0) ++removed;
  }
  for (const char* folder : {"packs", "states"}) {
    std::error_code failed;
    for (fs::directory_iterator entry(folder_ + "/" + folder, failed), end; !failed && entry != end;
         entry.increment(failed)) {
      const std::string name = entry->path().filename().string();
      if (name.starts_with(".") && name.ends_with(".tmp") && ::unlink(entry->path().c_str()) == 0)
        ++removed;
    }
  }
  return removed;
}

CollectReport Store::Collect() {
  CollectReport report;
  const auto disk = [&] {
    return SumOf(FilesIn("packs", ".pack")) + SumOf(FilesIn("states", ".kvs")) + IndexBytes();
  };
  report.before_bytes = disk();
  const std::set<ObjectId> live = LiveObjects();
  std::map<uint64_t, uint64_t> packs = index_->Packs();
  std::map<uint64_t, std::vector<std::pair<ObjectId, Place>>> kept;
  Index::Change change;
  for (const auto& [id, place] : index_->Objects()) {
    if (live.contains(id)) {
      kept[place.pack].emplace_back(id, place);
    } else {
      change.gone.push_back(id);
    }
  }
  std::optional<AtomicFile> fresh;
  const uint64_t number = index_->NextNumber();
  for (const auto& [pack, bytes] : packs) {
    const auto objects = kept.find(pack);
    uint64_t used = 0;
    if (objects != kept.end()) {
      for (const auto& [id, place] : objects->second) used += place.stored_bytes;
    }
    if (used > 0 && bytes - std::min(used, bytes) <= bytes / kRewriteOneIn) continue;
    if (used > 0) {
      if (!fresh) {
        fresh.emplace(PackPath(number), Overwrite::kRefuse);
        fresh->Write(PackHeader());
      }
      const auto from = Pack(pack);
      for (const auto& [id, place] : objects->second) {
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
  packs_.clear();
  report.leftover_files = RemoveLeftFiles(index_->Packs());
  const uint64_t expected = report.removed_packs + report.rewritten_packs;
  report.leftover_files -= std::min(report.leftover_files, expected);
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
  for (const uint64_t id : ids) ::unlink(RecordPath(id).c_str());
  return removed;
}

}  // namespace kv::store
