// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lib/core/base/error.h"
#include "lib/store/folder.h"

struct sqlite3_vfs;

namespace kv::store {

// All that SQLite sees of the file system: one index and its rollback journal, by name in the
// store's folder. SQLite's own file system would follow a path that a forged journal names and
// remove the file there (a super-journal, as ATTACH needs it). This one refuses every other name,
// links, what is no regular file, and write-ahead logs, and has no temporary files. The locks are
// those of SQLite's own ("unix"), taken for the open file (F_OFD_SETLK), so connections of one
// process exclude each other, too.
class IndexFiles {
 public:
  IndexFiles(const Folder& folder, std::string name);
  ~IndexFiles();
  IndexFiles(const IndexFiles&) = delete;
  IndexFiles& operator=(const IndexFiles&) = delete;

  const Folder& folder() const { return folder_; }
  const std::string& name() const { return name_; }
  const std::string& journal() const { return journal_; }
  std::string path() const { return folder_.Join(name_); }
  // Name under which SQLite knows this file system.
  const char* vfs_name() const { return vfs_name_.c_str(); }
  // Bytes that the index takes on the disk; holes take none.
  uint64_t CountBytes() const;
  // Why the last file was not opened or removed; nothing if all were.
  std::optional<Error> refusal() const;

 private:
  friend struct IndexCalls;
  enum class Refusal { kNone, kSystem, kOtherName, kNotRegular, kLinked };

  const Folder& folder_;
  std::string name_, journal_, vfs_name_;
  std::unique_ptr<sqlite3_vfs> vfs_;
  int main_ = -1;  // descriptor of the index while it is open
  Refusal refusal_ = Refusal::kNone;
  int errno_ = 0;
  bool refused_journal_ = false;
};

}  // namespace kv::store
