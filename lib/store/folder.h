// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/base/descriptor.h"
#include "lib/core/base/file.h"

struct stat;

namespace kv::store {

// An open folder of a store. The store may come from someone else, so names are looked up relative
// to the folder's descriptor and links are never followed: nothing outside the store can be
// reached, whatever is renamed meanwhile. Throws kOpenFailed and kWriteFailed for errors of the
// system.
class Folder {
 public:
  // Opens the folder that the user names, which may be a link to one. Returns nullopt if the name
  // does not exist. Throws kExists if it is not a folder.
  static std::optional<Folder> Open(const std::string& path);

  // Opens the folder `name` in this one; nullopt if it is missing. Throws kUnsafeName for a link or
  // anything else that is not a folder.
  std::optional<Folder> Below(const std::string& name) const;
  // Opens the folder, and creates it if it is missing.
  Folder MakeBelow(const std::string& name) const;

  std::vector<std::string> Names() const;
  // Returns nullopt if no regular file has the name.
  std::optional<struct stat> Find(const std::string& name) const;
  // Opens a regular file for reading; -1 if it does not exist.
  int OpenDescriptor(const std::string& name) const;
  // Maps a file; nullptr if there is none.
  std::shared_ptr<const FileSource> OpenFile(const std::string& name) const;
  // Removes a file, or a link itself. Returns false if it did not exist or is a folder.
  bool Remove(const std::string& name) const;
  void Rename(const std::string& from, const std::string& to) const;
  void Sync() const;

  int descriptor() const { return descriptor_.get(); }
  const std::string& path() const { return path_; }
  std::string Join(const std::string& name) const { return path_ + "/" + name; }

 private:
  Folder(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}

  Descriptor descriptor_;
  std::string path_;
};

// A new file in a folder of a store. Until Commit has synced it, it has no name, or a hidden one if
// the file system lacks unnamed files; it never replaces another file.
class NewFile : public Sink {
 public:
  NewFile(const Folder& folder, std::string name);
  ~NewFile() override;
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void Write(ByteSpan bytes) override;
  uint64_t size() const { return size_; }
  void Commit();  // throws kExists

 private:
  const Folder& folder_;
  std::string name_, temporary_;
  Descriptor descriptor_;
  uint64_t size_ = 0;
};
// Returns true for the hidden names that NewFile uses, or used in earlier versions.
bool IsTemporaryName(const std::string& name);

}  // namespace kv::store
