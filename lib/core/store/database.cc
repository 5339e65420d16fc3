// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/store/database.h"

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>

namespace kv::store {
namespace {

// Transactions are short; what waits longer waits for something that hangs.
constexpr int kBusyMilliseconds = 60000;
// What this program's databases have in their head, so that another's is not taken for one.
constexpr uint64_t kApplicationId = 0x4b565453, kSchemaVersion = 1;
// Rows are longer than 40 bytes, and none takes more than some 40 steps.
constexpr uint64_t kMostWorkPerByte = 16, kWorkOfAny = uint64_t{1} << 22;
constexpr int kWorkBetweenLooks = 4096;
// Four texts of at most 4096 bytes, a guide and numbers.
constexpr int kMostRowBytes = 1 << 16;

// Bytes that are there; holes are not.
uint64_t BytesAt(const std::string& path) {
  constexpr uint64_t kBlock = 512;
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return 0;
  return std::min(static_cast<uint64_t>(status.st_size),
                  static_cast<uint64_t>(status.st_blocks) * kBlock);
}

}  // namespace

Statement::Statement(Database& database, std::string_view text) : database_(database) {
  const int result = sqlite3_prepare_v2(database.handle_, text.data(),
                                        static_cast<int>(text.size()), &statement_, nullptr);
  if (result != SQLITE_OK) database.Fail(result);
}

Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::Bind(int place, int64_t value) {
  Require(sqlite3_bind_int64(statement_, place, value));
  return *this;
}

// Hashes take all 64 bits.
Statement& Statement::Bind(int place, uint64_t value) {
  return Bind(place, static_cast<int64_t>(value));
}

Statement& Statement::Bind(int place, std::string_view text) {
  Require(sqlite3_bind_text64(statement_, place, text.data(), text.size(), SQLITE_TRANSIENT,
                              SQLITE_UTF8));
  return *this;
}

Statement& Statement::Bind(int place, ByteSpan blob) {
  Require(sqlite3_bind_blob64(statement_, place, blob.data(), blob.size(), SQLITE_TRANSIENT));
  return *this;
}

// A value that is not bound, for want of memory, counts as NULL, which INSERT OR IGNORE leaves out.
void Statement::Require(int result) const {
  if (result != SQLITE_OK) database_.Fail(result);
}

// A value that cannot be read, for want of memory, looks like NULL.
void Statement::RequireRead() const {
  if (sqlite3_errcode(database_.handle_) == SQLITE_NOMEM) database_.Fail(SQLITE_NOMEM);
}

bool Statement::Step() {
  if (!is_running_) database_.work_ = 0;
  is_running_ = true;
  const int result = sqlite3_step(statement_);
  if (result == SQLITE_ROW) return true;
  Reset();
  if (result != SQLITE_DONE) database_.Fail(result);
  return false;
}

void Statement::Run() {
  while (Step()) {
  }
}

void Statement::Reset() {
  sqlite3_reset(statement_);
  is_running_ = false;
}

int64_t Statement::Signed(int column) const { return sqlite3_column_int64(statement_, column); }

std::string Statement::Text(int column) const {
  const unsigned char* text = sqlite3_column_text(statement_, column);
  if (text == nullptr) {
    RequireRead();
    return {};
  }
  const int size = sqlite3_column_bytes(statement_, column);
  return {reinterpret_cast<const char*>(text), static_cast<size_t>(size)};
}

Bytes Statement::Blob(int column) const {
  const auto* blob = static_cast<const std::byte*>(sqlite3_column_blob(statement_, column));
  if (blob == nullptr) {
    RequireRead();
    return {};
  }
  return {blob, blob + sqlite3_column_bytes(statement_, column)};
}

Database::Database(const std::string& path, Use use) : path_(path) {
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_FULLMUTEX |
                    (use == Use::kCreate ? SQLITE_OPEN_CREATE : 0);
  const int result = sqlite3_open_v2(path.c_str(), &handle_, flags, nullptr);
  try {
    if (result != SQLITE_OK) Fail(result);
    sqlite3_busy_timeout(handle_, kBusyMilliseconds);
    sqlite3_progress_handler(handle_, kWorkBetweenLooks, CountWork, this);
    sqlite3_limit(handle_, SQLITE_LIMIT_LENGTH, kMostRowBytes);
    // The file may come from anywhere: nothing in it is to be run, and no page is trusted.
    for (const int option : {SQLITE_DBCONFIG_TRUSTED_SCHEMA, SQLITE_DBCONFIG_ENABLE_TRIGGER,
                             SQLITE_DBCONFIG_ENABLE_VIEW}) {
      sqlite3_db_config(handle_, option, 0, nullptr);
    }
    sqlite3_db_config(handle_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
    // A rollback journal, not WAL: that needs memory shared between processes, which network file
    // systems do not have, and a folder that readers may write to. EXTRA also syncs the folder.
    Do("PRAGMA synchronous=EXTRA; PRAGMA temp_store=MEMORY; PRAGMA cell_size_check=ON");
    if (use == Use::kCreate) {
      Do(fmt::format("PRAGMA application_id={}; PRAGMA user_version={}", kApplicationId,
                     kSchemaVersion)
             .c_str());
      return;
    }
    Statement id(*this, "PRAGMA application_id"), version(*this, "PRAGMA user_version");
    id.Step();
    version.Step();
    if (id.Number(0) != kApplicationId) {
      throw Error(Finding::kBadMagic, "this database is not the index of a store");
    }
    if (version.Number(0) != kSchemaVersion) {
      throw Error(Finding::kUnsupportedVersion,
                  fmt::format("an index of version {}, {} is supported", version.Number(0),
                              kSchemaVersion));
    }
  } catch (Error& error) {
    sqlite3_close_v2(handle_);
    error.File(path_);
    throw;
  }
}

int Database::CountWork(void* self) {
  Database& database = *static_cast<Database*>(self);
  const uint64_t work = database.work_ += kWorkBetweenLooks;
  return work > kWorkOfAny && work > kMostWorkPerByte * BytesAt(database.path_) ? 1 : 0;
}

Database::~Database() { sqlite3_close_v2(handle_); }

void Database::Do(const char* text) {
  const int result = sqlite3_exec(handle_, text, nullptr, nullptr, nullptr);
  if (result != SQLITE_OK) Fail(result);
}

void Database::Fail(int result) const {
  const std::string text = handle_ == nullptr ? sqlite3_errstr(result) : sqlite3_errmsg(handle_);
  constexpr int kPrimary = 0xff;
  switch (result & kPrimary) {
    case SQLITE_INTERRUPT:
      throw Error(Finding::kInconsistent, "the index is damaged: its pages lead in circles")
          .File(path_)
          .Hint(std::string(kRepairHint));
    case SQLITE_CANTOPEN:
      throw Error(Finding::kOpenFailed, "cannot open the index: " + text).File(path_);
    case SQLITE_NOMEM:
      throw Error(Finding::kNoMemory, "no memory for the index").File(path_);
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      throw Error(Finding::kWriteFailed, "the index: " + text).File(path_);
    default:
      throw Error(Finding::kInconsistent, "the index is damaged: " + text)
          .File(path_)
          .Hint(std::string(kRepairHint));
  }
}

Transaction::Transaction(Database& database) : database_(database) {
  database_.Do("BEGIN IMMEDIATE");
}

Transaction::~Transaction() {
  if (!open_) return;
  try {
    database_.Do("ROLLBACK");
  } catch (const Error&) {
    // SQLite has rolled back already.
  }
}

void Transaction::Commit() {
  database_.Do("COMMIT");
  open_ = false;
}

}  // namespace kv::store
