// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/store/database.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <utility>

namespace kv::store {
namespace {

// Transactions are short; a longer wait means that another process hangs.
constexpr int kBusyMilliseconds = 60000;
// Numbers in the header of the SQLite file that identify a database of kvtool.
constexpr uint64_t kApplicationId = 0x4b565453, kSchemaVersion = 1;
// Limits on SQLite's work, so that a forged file cannot keep it busy: rows have at least 40 bytes,
// and none takes more than some 40 steps.
constexpr uint64_t kMostWorkPerByte = 16, kWorkOfAny = uint64_t{1} << 22;
constexpr int kWorkBetweenLooks = 4096;
// A row holds four texts of at most 4096 bytes, a guide and numbers.
constexpr int kMostRowBytes = 1 << 16;
// The longest SQL text of kvtool's own, a table's definition, takes some 500 bytes; a foreign file
// may bring others.
constexpr int kMostTextBytes = 1 << 13, kMostColumns = 64;

}  // namespace

Statement::Statement(Database& database, std::string_view text) : database_(database) {
  const int result = database.Try([&] {
    return sqlite3_prepare_v2(database.handle_, text.data(), static_cast<int>(text.size()),
                              &statement_, nullptr);
  });
  if (result != SQLITE_OK) database.Fail(result);
}

Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::Bind(int place, int64_t value) {
  Require(sqlite3_bind_int64(statement_, place, value));
  return *this;
}

// Hashes use all 64 bits.
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

// A value that could not be bound for lack of memory would count as NULL, which INSERT OR IGNORE
// skips silently.
void Statement::Require(int result) const {
  if (result != SQLITE_OK) database_.Fail(result);
}

// A value that cannot be read for lack of memory looks like NULL.
void Statement::RequireRead() const {
  if (sqlite3_errcode(database_.handle_) == SQLITE_NOMEM) database_.Fail(SQLITE_NOMEM);
}

bool Statement::Step() {
  const auto step = [&] {
    const int result = sqlite3_step(statement_);
    if (result != SQLITE_ROW && result != SQLITE_DONE) sqlite3_reset(statement_);
    return result;
  };
  const bool is_first = !std::exchange(is_running_, true);
  if (is_first) database_.work_ = 0;
  const int result = is_first ? database_.Try(step) : step();
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

Database::Database(const Folder& folder, const std::string& name, Use use)
    : files_(folder, name), use_(use) {
  const int flags = use == Use::kCreate ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE
                    : use == Use::kRead ? SQLITE_OPEN_READONLY
                                        : SQLITE_OPEN_READWRITE;
  const int result =
      sqlite3_open_v2(name.c_str(), &handle_, flags | SQLITE_OPEN_FULLMUTEX, files_.vfs_name());
  try {
    if (result != SQLITE_OK) Fail(result);
    Configure();
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
      throw Error(Finding::kUnsupportedVersion, "an index of version {}, {} is supported",
                  version.Number(0), kSchemaVersion);
    }
  } catch (Error& error) {
    sqlite3_close_v2(handle_);
    error.File(path());
    throw;
  }
}

// The file may come from anywhere: SQL in it must not run, and its pages are not trusted.
void Database::Configure() {
  sqlite3_extended_result_codes(handle_, 1);
  sqlite3_busy_timeout(handle_, kBusyMilliseconds);
  sqlite3_progress_handler(handle_, kWorkBetweenLooks, CountWork, this);
  for (const auto& [limit, most] :
       {std::pair(SQLITE_LIMIT_LENGTH, kMostRowBytes),
        std::pair(SQLITE_LIMIT_SQL_LENGTH, kMostTextBytes),
        std::pair(SQLITE_LIMIT_COLUMN, kMostColumns), std::pair(SQLITE_LIMIT_ATTACHED, 0),
        std::pair(SQLITE_LIMIT_TRIGGER_DEPTH, 0)}) {
    sqlite3_limit(handle_, limit, most);
  }
  for (const int option :
       {SQLITE_DBCONFIG_TRUSTED_SCHEMA, SQLITE_DBCONFIG_ENABLE_TRIGGER, SQLITE_DBCONFIG_ENABLE_VIEW,
        SQLITE_DBCONFIG_WRITABLE_SCHEMA, SQLITE_DBCONFIG_DQS_DDL, SQLITE_DBCONFIG_DQS_DML}) {
    sqlite3_db_config(handle_, option, 0, nullptr);
  }
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  // A rollback journal instead of WAL: WAL needs memory shared between processes, which network
  // file systems lack, and a folder that readers may write to. EXTRA also syncs the folder. The
  // cache size is fixed because the file would determine it otherwise.
  Do("PRAGMA synchronous=EXTRA; PRAGMA temp_store=MEMORY; PRAGMA cell_size_check=ON; "
     "PRAGMA cache_size=-2000; PRAGMA mmap_size=0");
}

int Database::Try(const std::function<int()>& call) {
  const int result = call();
  if (result != SQLITE_READONLY_ROLLBACK || use_ != Use::kRead) return result;
  // Opening the file for writing rolls the unfinished change back.
  Database(files_.folder(), files_.name(), Use::kWrite);
  return call();
}

int Database::CountWork(void* self) {
  Database& database = *static_cast<Database*>(self);
  const uint64_t work = database.work_ += kWorkBetweenLooks;
  return work > kWorkOfAny && work > kMostWorkPerByte * database.files_.CountBytes() ? 1 : 0;
}

Database::~Database() { sqlite3_close_v2(handle_); }

void Database::Do(const char* text) {
  const int result = Try([&] { return sqlite3_exec(handle_, text, nullptr, nullptr, nullptr); });
  if (result != SQLITE_OK) Fail(result);
}

void Database::Fail(int result) const {
  const std::string text = handle_ == nullptr ? sqlite3_errstr(result) : sqlite3_errmsg(handle_);
  const auto damaged = [&](const std::string& how) {
    return Error(Finding::kInconsistent, "the index is damaged: " + how)
        .File(path())
        .Hint(std::string(kRepairHint));
  };
  constexpr int kPrimary = 0xff;
  const int primary = result & kPrimary;
  if (primary == SQLITE_CANTOPEN || result == SQLITE_IOERR_ACCESS ||
      result == SQLITE_IOERR_DELETE) {
    if (const std::optional<Error> refusal = files_.refusal()) throw *refusal;
  }
  if (result == SQLITE_READONLY_ROLLBACK) {
    throw Error(Finding::kWriteFailed, "a change was interrupted, and this user may not undo it")
        .File(path())
        .Hint("a user who may write to the store undoes it with any command, such as 'store list'");
  }
  switch (primary) {
    case SQLITE_INTERRUPT:
      throw damaged("its pages form a cycle");
    case SQLITE_CANTOPEN:
      throw damaged("it needs a write-ahead log, which stores do not use");
    case SQLITE_NOMEM:
      throw Error(Finding::kNoMemory, "out of memory for the index").File(path());
    case SQLITE_FULL:
      throw Error(Finding::kWriteFailed, "the index: " + text)
          .File(path())
          .Hint(
              "free some of the disk: a change needs about {} bytes for a journal beside the index",
              files_.CountBytes());
    case SQLITE_IOERR:
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      throw Error(Finding::kWriteFailed, "the index: " + text).File(path());
    default:
      throw damaged(text);
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
    // SQLite has already rolled back.
  }
}

void Transaction::Commit() {
  database_.Do("COMMIT");
  open_ = false;
}

}  // namespace kv::store
