// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "lib/core/archive/archive.h"
#include "lib/core/base/output.h"
#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/store/folder.h"
#include "lib/store/index.h"

// A folder of states in which what they have in common is stored once (FORMAT.md). store.cc opens
// it, add.cc adds to it and gives states back, check.cc proves and mends it and frees what no state
// needs.
namespace kv::store {

constexpr std::string_view kIndexName = "index.sqlite", kReserveName = "reserve";

// Held while a store is used. Whoever removes or mends something is alone; all others share.
class StoreLock {
 public:
  // Takes over the descriptor of the file that is locked; `path` is for messages.
  StoreLock(int descriptor, std::string path, bool alone, const std::function<void()>& waiting);
  ~StoreLock();
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;
  void BeAlone(const std::function<void()>& waiting);  // from now on
  void Share();                                        // from now on

 private:
  void Lock(int how, const std::function<void()>& waiting);

  int descriptor_;
  std::string path_;
};

struct AddOptions {
  std::string name;
  int64_t added_us = 0;
  Effort effort = Effort::kDefault;
  uint64_t block_tokens = 0;  // 0: what suits the level
  bool check = true;          // decode each new object, and all of a state that is there already
  Progress* progress = nullptr;
};

struct AddReport {
  StateRecord state;
  bool was_there = false;  // as the newest state of this name: nothing was added
  std::optional<uint64_t> parent;
  uint64_t prefix_tokens = 0;  // that the parent has as well
  uint64_t new_objects = 0, new_raw_bytes = 0, shared_objects = 0, shared_raw_bytes = 0;
  uint64_t mended_objects = 0;  // new ones in place of damaged ones, for all states that need them
  uint64_t record_bytes = 0;
};

struct Problem {
  std::string where, text;
  Finding finding = Finding::kChecksum;
};

struct CheckReport {
  uint64_t states = 0, objects = 0, raw_bytes = 0, stored_bytes = 0;
  uint64_t leftover_files = 0, leftover_bytes = 0;  // of runs that were killed, or are under way
  std::vector<StateRow> unlisted;                   // as Leftovers has them
  std::vector<Problem> problems;
  std::vector<StateRow> damaged;   // states that cannot be restored
  std::vector<StateRow> relisted;  // that a sound index did not name, and the new one does
};

// What the index does not name.
struct Leftovers {
  // States whose records are whole: their adding or removal was cut short, or the index comes from
  // a backup. A repair lists them again.
  std::vector<StateRow> unlisted;
  std::set<ObjectId> needed;             // objects of these
  std::vector<uint64_t> packs, records;  // files that nothing needs
  uint64_t bytes = 0;                    // in these
};

struct CollectReport {
  uint64_t removed_objects = 0, removed_packs = 0, rewritten_packs = 0;
  uint64_t skipped_packs = 0;  // that were to be written anew, for which there was no room
  uint64_t leftover_files = 0;
  uint64_t before_bytes = 0, after_bytes = 0;  // of the whole store
  std::vector<StateRow> unlisted;              // which stay, with all packs
};

// A state's share in the store's objects.
struct StateUse {
  StateRow row;
  bool is_newest = false;         // of its name
  uint64_t shared_bytes = 0;      // decoded, of objects that other states need, too
  uint64_t own_stored_bytes = 0;  // of objects that only it needs, and of its record
};

struct StoreStats {
  std::vector<StateUse> uses;  // by number
  uint64_t older_states = 0;   // those that are not the newest of their name
  uint64_t older_bytes = 0;    // that only these need, with their records
  uint64_t states = 0, names = 0, source_bytes = 0, objects = 0;
  // On the disk.
  uint64_t pack_bytes = 0, record_bytes = 0, index_bytes = 0, packs = 0;
  uint64_t live_stored_bytes = 0;     // of objects that some state needs
  uint64_t live_raw_bytes = 0;        // the same before they were coded
  uint64_t shared_raw_bytes = 0;      // of these, what more than one place needs
  uint64_t referenced_raw_bytes = 0;  // what all states need, added up
  std::vector<LevelRow> levels;

  uint64_t disk_bytes() const { return pack_bytes + record_bytes + index_bytes; }
};

// Few bytes may decode to many: whoever checks a store can say how many are too many.
inline constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

class Store {
 public:
  enum class Use {
    kRead,
    kAdd,    // makes the store where there is none
    kAlone,  // waits until nobody else uses it
    kMend,   // the same, without an index
  };
  // `waiting` is called once if somebody else has to finish first. Throws kOpenFailed where there
  // is no store, kExists where something else is, kUnsafeName where links lead out of it,
  // kMissingRecord, kInconsistent, kUnsupportedVersion.
  Store(std::string folder, Use use, const std::function<void()>& waiting = {});

  std::vector<StateRow> States() { return index_->States(); }
  // "NAME" is the newest of that name, "NAME@2" the second that was added of those that are left,
  // "@7" the state with that number. Throws kMissingRecord.
  StateRow Find(const std::string& what);
  // Throws kMissingRecord, kChecksum and what DecodeState does.
  StateRecord Load(const StateRow& row) const;

  AddReport Add(const Source& source, const Snapshot* snapshot, const AddOptions& options,
                ThreadPool& pool);
  // Throws kLostChunk, kInconsistent, kChecksum and what DecodeChunk does, kContentDiffers.
  void Restore(const StateRecord& record, RestoreTarget& target, ThreadPool& pool,
               Progress* progress);
  // Throws kLimit where all objects decode to more than `most` bytes.
  CheckReport Check(ThreadPool& pool, Progress* progress, uint64_t most = kNoLimit);
  // Makes a new index of what the packs and records hold.
  CheckReport Mend(ThreadPool& pool, uint64_t most = kNoLimit);
  StoreStats Stats();

  CollectReport Collect();
  // States that are not among the newest `keep_last` of their name, of all names or of `names`.
  std::vector<StateRow> Older(uint64_t keep_last, const std::set<std::string>& names);
  // Each is removed or none. Collect frees what they needed.
  void Remove(const std::vector<StateRow>& states);

  const std::string& folder() const { return folder_; }
  // Those of who may look into the store and into its packs.
  Permissions permissions() const;
  // Bytes that packs and records take on the disk; holes take none.
  uint64_t CountBytes() const;

 private:
  static std::string PackName(uint64_t pack);
  static std::string RecordName(uint64_t state);
  std::string PackPath(uint64_t pack) const { return packs().Join(PackName(pack)); }
  std::string RecordPath(uint64_t state) const { return states().Join(RecordName(state)); }
  const Folder& packs() const { return *packs_; }
  const Folder& states() const { return *states_; }
  void OpenRoot(Use use);
  void Make();
  // Makes an index of these contents in place of the one that is there.
  void NameIndex(const Index::Contents& contents);
  uint64_t IndexBytes() const;
  uint64_t FreeBytes() const;  // of the disk, for this user
  // Make and give up the file that keeps room for the runs that free and mend.
  void KeepReserve();
  void UseReserve();
  // Sizes of the files in a folder that `name` gives a number.
  static std::map<uint64_t, uint64_t> FilesIn(const Folder& folder,
                                              std::string (*name)(uint64_t number));
  std::map<uint64_t, uint64_t> PackFiles() const { return FilesIn(packs(), PackName); }
  std::map<uint64_t, uint64_t> RecordFiles() const { return FilesIn(states(), RecordName); }
  uint64_t NewNumber();
  std::shared_ptr<const FileSource> Pack(uint64_t pack);
  // Decodes an object and checks that it is the one asked for.
  void LoadObject(const ObjectId& id, uint64_t bytes, CodecScratch& scratch, Bytes& raw);
  // What is wrong with an object; nothing if nothing is. Without `decode` it may still decode to
  // other bytes, which only a forged or faultily written one does.
  std::optional<Problem> CheckObject(const ObjectId& id, const Place& place, bool decode = true);
  uint64_t DecodedBytes(const std::map<ObjectId, Place>& objects);
  std::set<ObjectId> LiveObjects();
  std::vector<StateRow> Unlisted(const Index::Contents& contents) const;
  // Objects that are needed, by pack.
  using Kept = std::map<uint64_t, std::vector<std::pair<ObjectId, Place>>>;
  // Throws kLostChunk unless packs and objects that are needed lie where the index has them, and
  // where a pack holds an object that is needed and that the index does not name.
  void RequirePacks(const std::map<uint64_t, uint64_t>& packs, const Kept& kept,
                    const std::set<ObjectId>& missing);
  bool HoldsAny(uint64_t pack, const std::set<ObjectId>& ids);
  bool LiesAt(const ObjectId& id, const Place& place);
  void Apply(const Index::Change& change);
  // Copies objects of one pack to another.
  void CopyObjects(uint64_t pack, const Kept::mapped_type& objects, NewFile& to,
                   Index::Change& change);
  void RewritePacks(const Kept& kept, const std::map<uint64_t, uint64_t>& packs,
                    CollectReport& report);
  uint64_t RemoveLeftovers(const Leftovers& left);
  // `any_missing`: a listed state lacks objects, which packs that the index does not name may have.
  Leftovers FindLeftovers(bool any_missing);

  class Adder;

  std::string folder_;
  std::optional<Folder> root_, packs_, states_;
  std::unique_ptr<StoreLock> lock_;
  std::unique_ptr<Index> index_;
  std::mutex opened_mutex_;
  std::map<uint64_t, std::shared_ptr<const FileSource>> opened_;
};

}  // namespace kv::store
