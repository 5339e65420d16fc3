// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "lib/store/database.h"
#include "lib/store/state.h"

// The index of a store: its states, and where their objects lie. All of it can be rebuilt from
// packs and records.
namespace kv::store {

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
  // Thread-safe.
  std::optional<Place> Find(const ObjectId& id);

  std::vector<StateRow> States();  // by number
  // Returns the newest state of a name and reads no other row, so that adding a state costs the same
  // however many there are.
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

}  // namespace kv::store
