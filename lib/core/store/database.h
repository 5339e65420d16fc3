// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>

#include "lib/core/base/bytes.h"

struct sqlite3;
struct sqlite3_stmt;

// SQLite, with this project's errors.
namespace kv::store {

class Database;

// A prepared statement. Bind from 1 on, Step row by row, Reset before the last; Run is for what has
// no rows. After its end, it serves again.
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

  // Of the row, from column 0 on.
  uint64_t Number(int column) const { return static_cast<uint64_t>(Signed(column)); }
  int64_t Signed(int column) const;
  std::string Text(int column) const;
  Bytes Blob(int column) const;

 private:
  void Require(int result) const;
  void RequireRead() const;

  Database& database_;
  sqlite3_stmt* statement_ = nullptr;
};

// A database file. Throws kInconsistent where the file is damaged, kBadMagic where it is none of
// ours, kOpenFailed and kWriteFailed for what the system refuses.
class Database {
 public:
  enum class Use { kOpen, kCreate };

  Database(const std::string& path, Use use);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void Do(const char* text);
  // What SQLite says of a result that is no success.
  [[noreturn]] void Fail(int result) const;

 private:
  friend class Statement;

  std::string path_;
  sqlite3* handle_ = nullptr;
};

// Everything until Commit, or nothing.
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
