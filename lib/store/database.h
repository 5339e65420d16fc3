// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by database.cc, index_files.cc

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/store/folder.h"

struct sqlite3;
struct sqlite3_stmt;

// SQLite with this project's errors.
struct sqlite3_vfs;

namespace kv::store {

// The only part of the file system that SQLite sees: one index and its rollback journal, by name in
// the store's folder. SQLite's own file system would follow a path that a forged journal names and
// remove the file there (a super-journal, as ATTACH needs it). This one refuses every other name,
// links, irregular files and write-ahead logs, and has no temporary files. The locks are those of
// SQLite's own ("unix"), taken for the open file (F_OFD_SETLK), so connections of one process
// exclude each other, too.
class IndexFiles {
 public:
  IndexFiles(const Folder& folder, std::string name);
  ~IndexFiles();
  IndexFiles(const IndexFiles&) = delete;
  IndexFiles& operator=(const IndexFiles&) = delete;

  const Folder& folder() const { return folder_; }
  const std::string& name() const { return name_; }
  std::string path() const { return folder_.Join(name_); }
  // Returns the name under which SQLite knows this file system.
  const char* vfs_name() const { return vfs_name_.c_str(); }
  // Returns the disk space of the index; holes take none.
  uint64_t CountBytes() const;
  // Returns why the last file was not opened or removed; nullopt if all were.
  std::optional<Error> refusal() const;

 private:
  friend struct IndexCalls;
  enum class Refusal { kNone, kSystem, kOtherName, kNotRegular, kLinked };

  const Folder& folder_;
  std::string name_, journal_, vfs_name_;
  std::unique_ptr<sqlite3_vfs> vfs_;
  int main_ = -1;  // descriptor of the index's file while it is open
  Refusal refusal_ = Refusal::kNone;
  int errno_ = 0;
  bool refused_journal_ = false;
};

class Database;

// A prepared statement. Bind values from 1 on, Step row by row, then Reset; Run serves statements
// without rows. After its end a statement can be used again.
class Statement {
 public:
  Statement(Database& database, std::string_view text);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Bind(int place, uint64_t value);
  Statement& Bind(int place, int64_t value);
  Statement& Bind(int place, std::string_view text);
  Statement& Bind(int place, ByteSpan blob);
  bool Step();
  void Run();
  void Reset();

  // Return the values of the row, counted from column 0.
  uint64_t Number(int column) const { return static_cast<uint64_t>(Signed(column)); }
  int64_t Signed(int column) const;
  std::string Text(int column) const;
  Bytes Blob(int column) const;

 private:
  void Require(int result) const;
  void RequireRead() const;

  Database& database_;
  sqlite3_stmt* statement_ = nullptr;
  bool is_running_ = false;
};

// Hint of errors about a damaged index.
inline constexpr std::string_view kRepairHint =
    "'kvtool store verify --repair' makes a new one of what the store holds";

// A database file in the folder of a store. Throws kInconsistent if the file is damaged, kBadMagic
// if it is not kvtool's, kUnsafeName if its folder holds something that IndexFiles refuses,
// kOpenFailed and kWriteFailed for errors of the system. A file whose pages form cycles counts as
// damaged: the work of a statement is limited in proportion to the file's size.
class Database {
 public:
  // kRead opens the file only for reading. An unfinished change of a killed run is rolled back
  // nevertheless, by a second connection.
  enum class Use { kRead, kWrite, kCreate };

  // Keeps a reference to the folder.
  Database(const Folder& folder, const std::string& name, Use use);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void Do(const char* text);
  std::string path() const { return files_.path(); }
  // Throws SQLite's message for a result that is not a success.
  [[noreturn]] void Fail(int result) const;

 private:
  friend class Statement;

  static int CountWork(void* self);
  // Returns the result of `call`, or of a second call if the first met an unfinished change.
  int Try(const std::function<int()>& call);
  void Configure();

  IndexFiles files_;
  Use use_;
  sqlite3* handle_ = nullptr;
  std::atomic<uint64_t> work_ = 0;  // work of the running statement
};

// Applies everything until Commit, or nothing.
class Transaction {
 public:
  explicit Transaction(Database& database);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void Commit();

 private:
  Database& database_;
  bool open_ = true;
};

}  // namespace kv::store
