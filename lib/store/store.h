// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by store.cc, index.cc, add.cc, check.cc

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/core/archive/archive.h"
#include "lib/core/base/descriptor.h"
#include "lib/core/base/output.h"
#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/store/database.h"
#include "lib/store/folder.h"
#include "lib/store/state.h"

namespace kv::store {

// The index of a store: its states, and where their objects lie. All of it can be rebuilt from
// packs and records.

// The location of an object.
struct Place {
  uint64_t pack = 0, offset = 0, stored_bytes = 0;
};

struct NewObject {
  ObjectId id = {};
  uint64_t offset = 0, stored_bytes = 0, raw_bytes = 0;
  Effort level = Effort::kDefault;
};

// The index's data about a state, available without its record.
struct StateRow {
  uint64_t id = 0;
  std::string name;
  int64_t added_us = 0;
  std::string format, model, geometry;
  uint64_t tokens = 0, layers = 0, source_bytes = 0, source_hash = 0, own_bytes = 0;
  uint64_t record_bytes = 0, record_hash = 0;
  Effort level = Effort::kDefault;
};

struct LevelRow {
  Effort level = Effort::kDefault;
  uint64_t objects = 0, raw_bytes = 0, stored_bytes = 0;
};

// States and packs have numbers from 1 to below this one, which JSON can represent exactly.
constexpr uint64_t kMostNumber = (uint64_t{1} << 53) - 1;
// New numbers exceed those of all files up to this one. Without that limit, a forged file with the
// highest number would leave none for new states.
constexpr uint64_t kMostCounted = kMostNumber / 2;

class Index {
 public:
  // Creates an empty index.
  static void Create(const Folder& folder, const std::string& name);
  // Keeps a reference to the folder.
  Index(const Folder& folder, const std::string& name, Database::Use use);

  // Returns a number that was never used; `least` must exceed those of all files, which an index
  // from a backup does not know.
  uint64_t NextNumber(uint64_t least);
  // Adds a state in one transaction, with the pack of its number if there are objects. With
  // `replace` these replace objects that the index already has. Returns false and adds nothing
  // unless `newest` is the newest state of the name (0: none).
  bool Add(const StateRecord& record, uint64_t record_bytes, uint64_t record_hash,
           const std::vector<NewObject>& objects, bool replace, uint64_t newest);
  // May be called from several threads.
  std::optional<Place> Find(const ObjectId& id);

  std::vector<StateRow> States();  // by number
  // Returns the newest state of a name and reads no other row, so that adding a state costs the
  // same however many there are.
  std::optional<StateRow> Newest(std::string_view name);
  // Returns states whose rows may begin like those of `guide`: those of the same name first, then
  // the newest.
  std::vector<StateRow> Candidates(const ObjectId& guide, std::string_view name, uint64_t most);
  std::map<uint64_t, uint64_t> Packs();  // number to bytes
  std::map<ObjectId, Place> Objects();
  std::vector<LevelRow> Levels();

  void RemoveStates(const std::vector<uint64_t>& ids);
  // Changes of one transaction: objects move to a new pack or disappear.
  struct Change {
    std::vector<ObjectId> gone;
    std::vector<uint64_t> packs_gone;
    std::optional<uint64_t> pack;
    uint64_t pack_bytes = 0;
    std::vector<NewObject> moved;
  };
  void Apply(const Change& change);
  // The whole contents of a new index.
  struct Contents {
    std::map<uint64_t, uint64_t> packs;
    std::map<ObjectId, std::pair<uint64_t, NewObject>> objects;  // pack, object
    struct Listed {
      StateRecord record;
      uint64_t bytes = 0, hash = 0;
    };
    std::vector<Listed> states;
  };
  void Fill(const Contents& contents);

 private:
  void Insert(const StateRecord& record, uint64_t bytes, uint64_t hash);
  void InsertPack(uint64_t pack, uint64_t bytes);
  void InsertObjects(uint64_t pack, const std::vector<NewObject>& objects, bool replace);
  StateRow ReadRow(const Statement& row) const;
  Place MakePlace(int64_t pack, uint64_t offset, uint64_t stored_bytes) const;
  uint64_t RequireNumber(int64_t number) const;
  void RequireSchema();
  Error Damaged(std::string_view how) const;

  Database database_;
  std::mutex mutex_;
  std::optional<Statement> find_;
};

// A folder of states whose common parts are stored once (FORMAT.md). store.cc opens it, add.cc adds
// and restores states, check.cc verifies and repairs it and frees objects that no state needs.

constexpr std::string_view kIndexName = "index.sqlite", kReserveName = "reserve";

// A lock held while a store is used: exclusive for removing and repairing, shared otherwise.
class StoreLock {
 public:
  // Takes over the descriptor of the locked file; `path` is for messages.
  StoreLock(int descriptor, std::string path, bool alone, const std::function<void()>& waiting);
  void BeAlone(const std::function<void()>& waiting);  // waits for an exclusive lock
  void Share();                                        // turns the lock into a shared one

 private:
  void Lock(int how, const std::function<void()>& waiting);

  Descriptor descriptor_;
  std::string path_;
};

struct AddOptions {
  std::string name;
  int64_t added_us = 0;
  Effort effort = Effort::kDefault;
  uint64_t block_tokens = 0;  // 0: a length that suits the level
  bool check = true;          // decodes new objects, and all objects of a state that exists already
  Progress* progress = nullptr;
  // 0, or a state that this run has added: files were listed then, so later numbers are larger.
  uint64_t after = 0;
};

struct AddReport {
  StateRecord state;
  bool was_there = false;  // true: it equals the newest state of its name, so nothing was added
  std::optional<uint64_t> parent;
  uint64_t prefix_tokens = 0;  // tokens that the parent has, too
  uint64_t new_objects = 0, new_raw_bytes = 0, shared_objects = 0, shared_raw_bytes = 0;
  uint64_t mended_objects = 0;  // damaged objects that were replaced, for all states that need them
  uint64_t record_bytes = 0;
};

struct Problem {
  std::string where, text;
  Finding finding = Finding::kChecksum;
};

struct CheckReport {
  uint64_t states = 0, objects = 0, raw_bytes = 0, stored_bytes = 0;
  uint64_t leftover_files = 0, leftover_bytes = 0;  // files of runs that were killed or still write
  std::vector<StateRow> unlisted;                   // as in Leftovers
  std::vector<Problem> problems;
  std::vector<StateRow> damaged;   // states that cannot be restored
  std::vector<StateRow> relisted;  // states that the repair adds to an intact index
};

// Files and states that the index does not list.
struct Leftovers {
  // States with intact records: their adding or removal was interrupted, or the index comes from a
  // backup. A repair lists them again.
  std::vector<StateRow> unlisted;
  std::set<ObjectId> needed;             // objects of the unlisted states
  std::vector<uint64_t> packs, records;  // files that no state needs
  uint64_t bytes = 0;                    // size of the leftover files
};

struct CollectReport {
  uint64_t removed_objects = 0, removed_packs = 0, rewritten_packs = 0;
  uint64_t skipped_packs = 0;  // packs that were kept as they are, because space is short
  uint64_t leftover_files = 0;
  uint64_t before_bytes = 0, after_bytes = 0;  // bytes of the whole store
  std::vector<StateRow> unlisted;              // states whose packs are kept
};

// A state's share of the store's objects.
struct StateUse {
  StateRow row;
  bool is_newest = false;         // newest state of its name
  uint64_t shared_bytes = 0;      // decoded size of objects that other states need, too
  uint64_t own_stored_bytes = 0;  // bytes of objects that only this state needs, and of its record
};

struct StoreStats {
  std::vector<StateUse> uses;  // by number
  uint64_t older_states = 0;   // states that are not the newest of their name
  uint64_t older_bytes = 0;    // size of objects that only older states need, with records
  uint64_t states = 0, names = 0, source_bytes = 0, objects = 0;
  // Disk space.
  uint64_t pack_bytes = 0, record_bytes = 0, index_bytes = 0, packs = 0;
  uint64_t live_stored_bytes = 0;     // bytes of objects that some state needs
  uint64_t live_raw_bytes = 0;        // decoded size of live objects
  uint64_t shared_raw_bytes = 0;      // the part of live_raw_bytes that is needed more than once
  uint64_t referenced_raw_bytes = 0;  // sum over all states of the bytes that each needs
  std::vector<LevelRow> levels;

  uint64_t disk_bytes() const { return pack_bytes + record_bytes + index_bytes; }
};

// Limit for checks: a few bytes may decode to very many.
inline constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

class Store {
 public:
  enum class Use {
    kRead,
    kAdd,    // creates the store if it does not exist
    kAlone,  // waits until no other process uses the store
    kMend,   // like kAlone, but without an index
  };
  // `waiting` is called once if another process has to finish first. Throws kOpenFailed if there is
  // no store, kExists if the path is something else, kUnsafeName if links lead out of it,
  // kMissingRecord, kInconsistent, kUnsupportedVersion.
  Store(std::string folder, Use use, const std::function<void()>& waiting = {});

  std::vector<StateRow> States() { return index_->States(); }
  // Finds a state: "NAME" is the newest of that name, "NAME@2" the second oldest of the existing
  // ones, "@7" the state with that number. Throws kMissingRecord.
  StateRow Find(const std::string& what);
  // Throws kMissingRecord, kChecksum, and as DecodeState.
  StateRecord Load(const StateRow& row) const;

  AddReport Add(const Source& source, const Snapshot* snapshot, const AddOptions& options,
                ThreadPool& pool);
  // Throws kLostChunk, kInconsistent, kChecksum, kContentDiffers, and as DecodeChunk.
  void Restore(const StateRecord& record, RestoreTarget& target, ThreadPool& pool,
               Progress* progress);
  // Throws kLimit if all objects together decode to more than `most` bytes.
  CheckReport Check(ThreadPool& pool, Progress* progress, uint64_t most = kNoLimit);
  // Makes a new index from the packs and records.
  CheckReport Mend(ThreadPool& pool, uint64_t most = kNoLimit);
  StoreStats Stats();

  CollectReport Collect();
  // Returns states that are not among the newest `keep_last` of their name, for all names or only
  // `names`.
  std::vector<StateRow> Older(uint64_t keep_last, const std::set<std::string>& names);
  // Removes all of the states or none. Collect frees their objects.
  void Remove(const std::vector<StateRow>& states);

  const std::string& folder() const { return folder_; }
  // Returns the permissions common to the store and its packs.
  Permissions permissions() const;
  // Returns the disk space of packs and records; holes take none.
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
  // Replaces the index by one with these contents.
  void NameIndex(const Index::Contents& contents);
  uint64_t IndexBytes() const;
  uint64_t FreeBytes() const;  // free space of the disk for this user
  // Create and delete the file that reserves space for runs that free and repair.
  void KeepReserve();
  void UseReserve();
  // Returns the sizes of the files in a folder to which `name` gives a number.
  static std::map<uint64_t, uint64_t> FilesIn(const Folder& folder,
                                              std::string (*name)(uint64_t number));
  std::map<uint64_t, uint64_t> PackFiles() const { return FilesIn(packs(), PackName); }
  std::map<uint64_t, uint64_t> RecordFiles() const { return FilesIn(states(), RecordName); }
  uint64_t NewNumber(uint64_t after = 0);
  std::shared_ptr<const FileSource> Pack(uint64_t pack);
  // Decodes an object and checks that its id is the requested one.
  void LoadObject(const ObjectId& id, uint64_t bytes, CodecScratch& scratch, Bytes& raw);
  // Returns the fault of an object; nullopt if there is none. Without `decode` it may still decode
  // to other bytes, which only forged or faultily written objects do.
  std::optional<Problem> CheckObject(const ObjectId& id, const Place& place, bool decode = true);
  uint64_t DecodedBytes(const std::map<ObjectId, Place>& objects);
  std::set<ObjectId> LiveObjects();
  std::vector<StateRow> Unlisted(const Index::Contents& contents) const;
  // Needed objects, by pack.
  using Kept = std::map<uint64_t, std::vector<std::pair<ObjectId, Place>>>;
  // Throws kLostChunk if needed packs or objects are not where the index has them, or if a pack
  // holds a needed object that the index does not list.
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
  // `any_missing` means that a listed state lacks objects, which unlisted packs may have.
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
