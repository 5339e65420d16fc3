// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/base/file.h"

struct stat;

namespace kv::store {

// An open folder of a store. Somebody else may have made the store, so names are looked up relative
// to the folder's descriptor and links are never followed: nothing outside the store can be
// reached, whatever is renamed meanwhile. Throws kOpenFailed and kWriteFailed for what the system
// refuses.
class Folder {
 public:
  // Opens the folder that the user names, which may be a link to one. Returns nothing if there is
  // nothing of that name. Throws kExists where something else has the name.
  static std::optional<Folder> Open(const std::string& path);
  ~Folder();
  Folder(Folder&& other) noexcept;
  Folder& operator=(Folder&& other) noexcept;

  // Opens the folder `name` in this one; nothing if it is missing. Throws kUnsafeName for a link
  // and whatever else is no folder.
  std::optional<Folder> Below(const std::string& name) const;
  // Opens it, too, and makes it where it is missing.
  Folder MakeBelow(const std::string& name) const;

  std::vector<std::string> Names() const;
  // Returns nothing where no regular file has the name.
  std::optional<struct stat> Find(const std::string& name) const;
  // Opens a regular file for reading; -1 if there is none.
  int OpenDescriptor(const std::string& name) const;
  // Maps it; null if there is none.
  std::shared_ptr<const FileSource> OpenFile(const std::string& name) const;
  // Removes a file or a link itself. Returns false if it was not there or is a folder.
  bool Remove(const std::string& name) const;
  void Rename(const std::string& from, const std::string& to) const;
  void Sync() const;

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  std::string Join(const std::string& name) const { return path_ + "/" + name; }

 private:
  Folder(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}

  int descriptor_;
  std::string path_;
};

// A new file in a folder of a store. It has no name, or a hidden one where the file system has no
// unnamed files, until Commit has synced it; it never replaces another.
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
  int descriptor_ = -1;
  uint64_t size_ = 0;
};
// True for the hidden names that NewFile gives, and gave.
bool IsTemporaryName(const std::string& name);

}  // namespace kv::store
