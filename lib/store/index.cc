// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "lib/store/store.h"

namespace kv::store {
namespace {

constexpr std::string_view kSchema[] = {
    "CREATE TABLE numbers(next INTEGER NOT NULL) STRICT",
    "CREATE TABLE packs(pack INTEGER PRIMARY KEY, bytes INTEGER NOT NULL) STRICT",
    R"(CREATE TABLE objects(id BLOB PRIMARY KEY, pack INTEGER NOT NULL, offset INTEGER NOT NULL,
  stored INTEGER NOT NULL, raw INTEGER NOT NULL, level INTEGER NOT NULL) STRICT, WITHOUT ROWID)",
    R"(CREATE TABLE states(state INTEGER PRIMARY KEY, name TEXT NOT NULL, added INTEGER NOT NULL,
  format TEXT NOT NULL, model TEXT NOT NULL, geometry TEXT NOT NULL, tokens INTEGER NOT NULL,
  layers INTEGER NOT NULL, source INTEGER NOT NULL, hash INTEGER NOT NULL, own INTEGER NOT NULL,
  record INTEGER NOT NULL, record_hash INTEGER NOT NULL, level INTEGER NOT NULL,
  guide BLOB NOT NULL) STRICT)",
    "CREATE INDEX states_by_guide ON states(guide)"};
constexpr const char* kColumns =
    "state, name, added, format, model, geometry, tokens, layers, source, hash, own, record, "
    "record_hash, level";

Effort ReadLevel(uint64_t number) {
  if (number > static_cast<uint64_t>(Effort::kMax)) {
    throw Error(Finding::kInconsistent, "the index names level {}", number);
  }
  return static_cast<Effort>(number);
}

ObjectId ReadId(const Bytes& blob) {
  ObjectId id;
  if (blob.size() != id.size()) {
    throw Error(Finding::kInconsistent, "the index names an object by an id of a wrong length");
  }
  std::copy(blob.begin(), blob.end(), id.begin());
  return id;
}

}  // namespace

void Index::Create(const Folder& folder, const std::string& name) {
  Database database(folder, name, Database::Use::kCreate);
  Transaction transaction(database);
  for (const std::string_view text : kSchema) Statement(database, text).Run();
  Statement(database, "INSERT INTO numbers VALUES(1)").Run();
  transaction.Commit();
}

Index::Index(const Folder& folder, const std::string& name, Database::Use use)
    : database_(folder, name, use) {
  RequireSchema();
  find_.emplace(database_, "SELECT pack, offset, stored FROM objects WHERE id = ?");
}

// Refuses any other schema: a computed column, for example, could have any size.
void Index::RequireSchema() {
  Statement rows(database_, "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid");
  size_t known = 0;
  while (rows.Step()) {
    if (known == std::size(kSchema) || rows.Text(0) != kSchema[known++])
      throw Damaged("its tables are not those of a store");
  }
  if (known != std::size(kSchema)) throw Damaged("it lacks tables");
}

Error Index::Damaged(std::string_view how) const {
  return Error(Finding::kInconsistent, "the index is damaged: {}", how)
      .File(database_.path())
      .Hint(std::string(kRepairHint));
}

uint64_t Index::RequireNumber(int64_t number) const {
  if (number >= 1 && static_cast<uint64_t>(number) <= kMostNumber)
    return static_cast<uint64_t>(number);
  throw Damaged(fmt::format("it has the number {}; 1 to {} are possible", number, kMostNumber));
}

uint64_t Index::NextNumber(uint64_t least) {
  Transaction transaction(database_);
  Statement read(database_, "SELECT next, (SELECT COUNT(*) FROM numbers) FROM numbers");
  if (!read.Step() || read.Number(1) != 1) throw Damaged("it has no next number, or several");
  const uint64_t number = std::max(RequireNumber(read.Signed(0)), least);
  read.Reset();
  RequireNumber(static_cast<int64_t>(number + 1));
  Statement(database_, "UPDATE numbers SET next = ?").Bind(1, number + 1).Run();
  transaction.Commit();
  return number;
}

void Index::InsertPack(uint64_t pack, uint64_t bytes) {
  Statement(database_, "INSERT INTO packs VALUES(?, ?)").Bind(1, pack).Bind(2, bytes).Run();
}

void Index::InsertObjects(uint64_t pack, const std::vector<NewObject>& objects, bool replace) {
  // Another run may have added the same object meanwhile; its copy is then used.
  Statement insert(database_, replace ? "INSERT OR REPLACE INTO objects VALUES(?, ?, ?, ?, ?, ?)"
                                      : "INSERT OR IGNORE INTO objects VALUES(?, ?, ?, ?, ?, ?)");
  for (const NewObject& object : objects) {
    insert.Bind(1, ByteSpan(object.id)).Bind(2, pack).Bind(3, object.offset);
    insert.Bind(4, object.stored_bytes).Bind(5, object.raw_bytes);
    insert.Bind(6, static_cast<uint64_t>(object.level)).Run();
  }
}

void Index::Insert(const StateRecord& record, uint64_t bytes, uint64_t hash) {
  Statement insert(database_,
                   "INSERT INTO states VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  insert.Bind(1, record.id).Bind(2, record.name).Bind(3, record.added_us);
  insert.Bind(4, record.format).Bind(5, record.model).Bind(6, record.geometry);
  insert.Bind(7, record.tokens).Bind(8, record.layers).Bind(9, record.source_bytes);
  insert.Bind(10, record.source_hash).Bind(11, record.own_bytes).Bind(12, bytes).Bind(13, hash);
  insert.Bind(14, static_cast<uint64_t>(record.level)).Bind(15, ByteSpan(record.guide)).Run();
}

bool Index::Add(const StateRecord& record, uint64_t record_bytes, uint64_t record_hash,
                const std::vector<NewObject>& objects, bool replace, uint64_t newest) {
  Transaction transaction(database_);
  {
    Statement read(database_, "SELECT MAX(state) FROM states WHERE name = ?");
    if (read.Bind(1, record.name).Step() && read.Number(0) != newest) return false;
  }
  if (!objects.empty()) {
    InsertPack(record.id, record.own_bytes);
    InsertObjects(record.id, objects, replace);
  }
  Insert(record, record_bytes, record_hash);
  transaction.Commit();
  return true;
}

std::optional<Place> Index::Find(const ObjectId& id) {
  const std::lock_guard lock(mutex_);
  if (!find_->Bind(1, ByteSpan(id)).Step()) return std::nullopt;
  const int64_t pack = find_->Signed(0);
  const uint64_t offset = find_->Number(1), stored_bytes = find_->Number(2);
  find_->Reset();
  return MakePlace(pack, offset, stored_bytes);
}

Place Index::MakePlace(int64_t pack, uint64_t offset, uint64_t stored_bytes) const {
  // Sums of these numbers are compared with the sizes of packs, so they must not overflow.
  if (stored_bytes > kObjectHeadBytes + kMaxObjectBytes)
    throw Damaged(fmt::format("it has an object of {} bytes", stored_bytes));
  return {RequireNumber(pack), offset, stored_bytes};
}

StateRow Index::ReadRow(const Statement& row) const {
  StateRow state;
  state.id = RequireNumber(row.Signed(0));
  state.name = row.Text(1);
  state.added_us = row.Signed(2);
  state.format = row.Text(3);
  state.model = row.Text(4);
  state.geometry = row.Text(5);
  state.tokens = row.Number(6);
  state.layers = row.Number(7);
  state.source_bytes = row.Number(8);
  state.source_hash = row.Number(9);
  state.own_bytes = row.Number(10);
  state.record_bytes = row.Number(11);
  state.record_hash = row.Number(12);
  state.level = ReadLevel(row.Number(13));
  return state;
}

std::vector<StateRow> Index::States() {
  Statement rows(database_, fmt::format("SELECT {} FROM states ORDER BY state", kColumns));
  std::vector<StateRow> states;
  while (rows.Step()) {
    StateRow row = ReadRow(rows);
    if (!states.empty() && row.id <= states.back().id) throw Damaged("states are out of order");
    states.push_back(std::move(row));
  }
  return states;
}

std::optional<StateRow> Index::Newest(std::string_view name) {
  Statement row(
      database_,
      fmt::format("SELECT {} FROM states WHERE name = ? ORDER BY state DESC LIMIT 1", kColumns));
  if (!row.Bind(1, name).Step()) return std::nullopt;
  return ReadRow(row);
}

std::vector<StateRow> Index::Candidates(const ObjectId& guide, std::string_view name,
                                        uint64_t most) {
  Statement rows(database_,
                 fmt::format("SELECT {} FROM states WHERE guide = ? ORDER BY name = ? DESC, "
                             "state DESC LIMIT ?",
                             kColumns));
  rows.Bind(1, ByteSpan(guide)).Bind(2, name).Bind(3, most);
  std::vector<StateRow> states;
  while (rows.Step()) states.push_back(ReadRow(rows));
  return states;
}

std::map<uint64_t, uint64_t> Index::Packs() {
  Statement rows(database_, "SELECT pack, bytes FROM packs");
  std::map<uint64_t, uint64_t> packs;
  while (rows.Step()) {
    if (!packs.emplace(RequireNumber(rows.Signed(0)), rows.Number(1)).second)
      throw Damaged("a pack is listed twice");
  }
  return packs;
}

std::map<ObjectId, Place> Index::Objects() {
  Statement rows(database_, "SELECT id, pack, offset, stored FROM objects");
  std::map<ObjectId, Place> objects;
  while (rows.Step()) {
    if (!objects
             .emplace(ReadId(rows.Blob(0)),
                      MakePlace(rows.Signed(1), rows.Number(2), rows.Number(3)))
             .second)
      throw Damaged("an object is listed twice");
  }
  return objects;
}

std::vector<LevelRow> Index::Levels() {
  Statement rows(database_,
                 "SELECT level, COUNT(*), SUM(raw), SUM(stored) FROM objects GROUP BY level");
  std::vector<LevelRow> levels;
  while (rows.Step()) {
    levels.push_back({ReadLevel(rows.Number(0)), rows.Number(1), rows.Number(2), rows.Number(3)});
  }
  return levels;
}

void Index::RemoveStates(const std::vector<uint64_t>& ids) {
  Transaction transaction(database_);
  Statement remove(database_, "DELETE FROM states WHERE state = ?");
  for (const uint64_t id : ids) remove.Bind(1, id).Run();
  transaction.Commit();
}

void Index::Apply(const Change& change) {
  Transaction transaction(database_);
  if (change.pack) {
    InsertPack(*change.pack, change.pack_bytes);
    InsertObjects(*change.pack, change.moved, true);
  }
  Statement forget(database_, "DELETE FROM objects WHERE id = ?");
  for (const ObjectId& id : change.gone) forget.Bind(1, ByteSpan(id)).Run();
  Statement remove(database_, "DELETE FROM packs WHERE pack = ?");
  for (const uint64_t pack : change.packs_gone) remove.Bind(1, pack).Run();
  transaction.Commit();
}

void Index::Fill(const Contents& contents) {
  Transaction transaction(database_);
  uint64_t next = 1;
  const auto count = [&](uint64_t number) {
    if (number <= kMostCounted) next = std::max(next, number + 1);
  };
  for (const auto& [pack, bytes] : contents.packs) {
    InsertPack(pack, bytes);
    count(pack);
  }
  for (const auto& [id, object] : contents.objects) {
    InsertObjects(object.first, {object.second}, false);
  }
  for (const Contents::Listed& listed : contents.states) {
    Insert(listed.record, listed.bytes, listed.hash);
    count(listed.record.id);
  }
  Statement(database_, "UPDATE numbers SET next = ?").Bind(1, next).Run();
  transaction.Commit();
}

}  // namespace kv::store
