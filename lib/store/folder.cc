// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/store/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lib/core/base/output.h"

namespace kv::store {
namespace {

constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

Error OpenError(const std::string& path) {
  return Error(Finding::kOpenFailed, "cannot open: {}", std::strerror(errno)).File(path);
}

}  // namespace

std::optional<Folder> Folder::Open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), kFolderFlags);
  if (descriptor >= 0) return Folder(descriptor, path);
  if (errno == ENOENT) return std::nullopt;
  if (errno == ENOTDIR)
    throw Error(Finding::kExists, "the folder holds something other than a store").File(path);
  throw OpenError(path);
}

std::optional<Folder> Folder::Below(const std::string& name) const {
  const int descriptor = ::openat(descriptor_.get(), name.c_str(), kFolderFlags | O_NOFOLLOW);
  if (descriptor >= 0) return Folder(descriptor, Join(name));
  if (errno == ENOENT) return std::nullopt;
  if (errno == ENOTDIR || errno == ELOOP) {
    throw Error(Finding::kUnsafeName,
                "is a link or not a folder, but a store needs a folder of its own")
        .File(Join(name))
        .Hint("put the folder itself in its place; the store as a whole may be a link");
  }
  throw OpenError(Join(name));
}

Folder Folder::MakeBelow(const std::string& name) const {
  // Mode 0700: the store contains conversation content.
  constexpr mode_t kOnlyOwner = 0700;
  if (::mkdirat(descriptor_.get(), name.c_str(), kOnlyOwner) == 0) {
    Sync();
  } else if (errno != EEXIST) {
    throw output::IoError("cannot make the folder", Join(name));
  }
  std::optional<Folder> made = Below(name);
  if (!made) throw OpenError(Join(name));
  return std::move(*made);
}

std::vector<std::string> Folder::Names() const {
  // Uses its own descriptor, because reading moves the position.
  const int again = ::openat(descriptor_.get(), ".", kFolderFlags);
  DIR* const entries = again < 0 ? nullptr : ::fdopendir(again);
  if (entries == nullptr) {
    const Error error = OpenError(path_);
    if (again >= 0) ::close(again);
    throw error;
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(entries)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  const int failed = errno;
  ::closedir(entries);
  // An incomplete list would make a repair believe that the rest is gone.
  if (failed != 0) {
    throw Error(Finding::kOpenFailed, "cannot be read: {}", std::strerror(failed)).File(path_);
  }
  return names;
}

std::optional<struct stat> Folder::Find(const std::string& name) const {
  struct stat status;
  if (::fstatat(descriptor_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return std::nullopt;
    throw OpenError(Join(name));
  }
  if (!S_ISREG(status.st_mode)) return std::nullopt;
  return status;
}

int Folder::OpenDescriptor(const std::string& name) const {
  if (!Find(name)) return -1;
  // The file may have become a FIFO between the two calls; O_NONBLOCK opens one without a writer.
  const int descriptor = ::openat(descriptor_.get(), name.c_str(),
                                  O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  struct stat status;
  if (descriptor >= 0 && ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode))
    return descriptor;
  const Error error = OpenError(Join(name));
  if (descriptor < 0 && (errno == ENOENT || errno == ELOOP)) return -1;
  if (descriptor < 0) throw error;
  ::close(descriptor);
  return -1;
}

std::shared_ptr<const FileSource> Folder::OpenFile(const std::string& name) const {
  const int descriptor = OpenDescriptor(name);
  return descriptor < 0 ? nullptr : FileSource::FromDescriptor(descriptor, Join(name));
}

bool Folder::Remove(const std::string& name) const {
  return ::unlinkat(descriptor_.get(), name.c_str(), 0) == 0;
}

void Folder::Rename(const std::string& from, const std::string& to) const {
  if (::renameat(descriptor_.get(), from.c_str(), descriptor_.get(), to.c_str()) != 0)
    throw output::IoError("cannot be renamed", Join(from));
}

void Folder::Sync() const { ::fsync(descriptor_.get()); }  // durable as far as the file system can

NewFile::NewFile(const Folder& folder, std::string name) : folder_(folder), name_(std::move(name)) {
  constexpr mode_t kMode = 0666;
  descriptor_.Reset(sys::OpenUnnamed(folder.descriptor(), ".", 0, kMode));
  if (descriptor_.get() < 0 && !output::LacksUnnamedFiles(errno))
    throw output::IoError("cannot create", folder_.Join(name_));
  for (int attempt = 0; descriptor_.get() < 0; ++attempt) {
    temporary_ = fmt::format(".{}.kvtool-{}-{}.tmp", name_, ::getpid(), attempt);
    descriptor_.Reset(::openat(folder.descriptor(), temporary_.c_str(),
                               O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, kMode));
    if (descriptor_.get() < 0 && errno != EEXIST)
      throw output::IoError("cannot create", folder_.Join(name_));
  }
}

NewFile::~NewFile() {
  if (!temporary_.empty()) folder_.Remove(temporary_);
}

void NewFile::Write(ByteSpan bytes) {
  output::PwriteAll(descriptor_.get(), size_, bytes, folder_.Join(name_));
  size_ += bytes.size();
}

void NewFile::Commit() {
  const std::string path = folder_.Join(name_);
  if (::fsync(descriptor_.get()) != 0 && errno != EINVAL)
    throw output::IoError("cannot write", path);
  const int folder = folder_.descriptor();
  const int done = temporary_.empty() ? sys::LinkUnnamed(descriptor_.get(), folder, name_.c_str())
                                      : output::RenameNoReplace(temporary_, name_, folder);
  if (done != 0 && errno == EEXIST) throw Error(Finding::kExists, "exists").File(path);
  if (done != 0) throw output::IoError("cannot give the temporary file its final name", path);
  temporary_.clear();
  folder_.Sync();
}

bool IsTemporaryName(const std::string& name) {
  return name.starts_with(".") && name.find(".kvtool-") != std::string::npos &&
         name.ends_with(".tmp");
}

}  // namespace kv::store
