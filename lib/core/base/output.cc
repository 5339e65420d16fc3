// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "lib/core/base/error.h"
#include "lib/core/base/number.h"

namespace kv {

namespace fs = std::filesystem;
using namespace output;
namespace {

constexpr uint32_t kReadBits = 0444;
constexpr uint64_t kCopyBytes = 1 << 20;

Error NoOutput(const fs::path& path, std::string_view what) {
  return Error(Finding::kUsage, "is {}, which kvtool does not replace", what).File(path.string());
}

// Follows a link to the file that is to be replaced, so that the link stays.
fs::path FollowLink(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_symlink(path, failed)) return path;
  fs::path target = fs::canonical(path, failed);
  if (failed) throw NoOutput(path, "a broken link");
  return target;
}

}  // namespace

namespace output {

void SyncFolder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // the data is safe; that the name survives a crash is best effort
  ::fsync(descriptor);
  ::close(descriptor);
}

void SyncName(const fs::path& path) {
  SyncFolder(ParentOf(path.has_filename() ? path : path.parent_path()));
}

void MakeFolders(const fs::path& path, std::error_code& failed) {
  if (path.empty() || fs::exists(path, failed)) return;
  MakeFolders(path.parent_path(), failed);
  if (fs::create_directory(path, failed)) SyncName(path);
}

void RefuseExisting(const fs::path& path, Overwrite overwrite) {
  if (overwrite == Overwrite::kAllow) return;
  std::error_code ignored;
  if (fs::symlink_status(path, ignored).type() == fs::file_type::not_found) return;
  throw Error(Finding::kExists, "exists").File(path.string()).Hint("use -f/--force to overwrite");
}

bool LacksUnnamedFiles(int error) {
  return error == EOPNOTSUPP || error == EISDIR || error == ENOENT || error == EINVAL;
}

int RenameNoReplace(const std::string& from, const std::string& to, int folder) {
  const int done = sys::RenameExclusively(folder, from.c_str(), to.c_str());
  if (done == 0 || (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)) return done;
  struct stat status;
  if (::fstatat(folder, to.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
    errno = EEXIST;
    return -1;
  }
  return ::renameat(folder, from.c_str(), folder, to.c_str());
}

void PwriteAll(int descriptor, uint64_t offset, ByteSpan bytes, const std::string& name) {
  if (!WriteAll(descriptor, bytes, offset)) throw IoError("cannot write", name);
}

// A hole at the end does not extend a file, so its size is set.
void EndAt(int descriptor, uint64_t size, const std::string& name) {
  struct stat status;
  if (::fstat(descriptor, &status) == 0 && static_cast<uint64_t>(status.st_size) >= size) return;
  if (::ftruncate(descriptor, static_cast<off_t>(size)) != 0) throw IoError("cannot write", name);
}

void GiveAway(int descriptor, const Permissions& like, uint32_t mode) {
  if (::fchown(descriptor, like.owner, static_cast<gid_t>(-1)) != 0) errno = 0;
  // A group other than the source's gets only the permissions that everybody has.
  if (::fchown(descriptor, static_cast<uid_t>(-1), like.group) != 0) {
    const uint32_t shared = (mode >> 3 & 07) & (mode & 07);
    mode = (mode & 0700) | shared << 3 | shared;
  }
  ::fchmod(descriptor, mode);
}

uint32_t WithSearch(uint32_t mode) { return mode | (mode & kReadBits) >> 2; }

}  // namespace output

std::optional<Permissions> Permissions::Of(const fs::path& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  Permissions of{static_cast<uint32_t>(status.st_mode & 0777), status.st_uid, status.st_gid};
  if (S_ISREG(status.st_mode)) return of;
  if (!S_ISDIR(status.st_mode)) return std::nullopt;
  std::error_code failed;
  for (fs::recursive_directory_iterator entry(path, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (::lstat(entry->path().c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
      of.mode &= status.st_mode;
    }
  }
  of.mode = (of.mode & 0666) | 0600;
  return of;
}

std::optional<int> DescriptorNamed(const fs::path& path) {
  const std::string name = path.lexically_normal().string();
  if (name == "-" || name == "/dev/stdout") return STDOUT_FILENO;
  if (name == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!name.starts_with(folder)) continue;
    const auto number = ParseNumber<int>(std::string_view(name).substr(folder.size()));
    if (number && *number >= 0) return number;
  }
  return std::nullopt;
}

AtomicFile::AtomicFile(fs::path path, const OutputRules& rules)
    : path_(std::move(path)), rules_(rules) {
  if (const std::optional<int> named = DescriptorNamed(path_)) {
    stream_.Reset(::fcntl(*named, F_DUPFD_CLOEXEC, 3));
    if (path_ == "-") path_ = "stdout";  // for messages
    if (stream_.get() < 0) throw IoError("cannot write", path_.string());
    return;
  }
  struct stat status;
  if (::stat(path_.c_str(), &status) == 0) {
    const mode_t kind = status.st_mode & S_IFMT;
    if (kind == S_IFBLK) throw NoOutput(path_, "a block device");
    if (kind == S_IFCHR || kind == S_IFIFO) {
      stream_.Reset(::open(path_.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC));
      if (stream_.get() < 0) throw IoError("cannot open for writing", path_.string());
      return;
    }
    RefuseExisting(path_, rules_.overwrite);
    if (kind == S_IFDIR) throw NoOutput(path_, "a folder");
    if (kind != S_IFREG) throw NoOutput(path_, "not a regular file");
  }
  RefuseExisting(path_, rules_.overwrite);
  path_ = FollowLink(path_);
  OpenForReplacing();
}

void AtomicFile::OpenForReplacing() {
  const mode_t mode = rules_.like ? 0600 : 0666;
  RemoveLeftovers(path_);  // a folder may have been written to this path before
  descriptor_.Reset(sys::OpenUnnamed(AT_FDCWD, ParentOf(path_).c_str(), 0, mode));
  if (descriptor_.get() >= 0) return;
  if (!LacksUnnamedFiles(errno)) throw IoError("cannot create", path_.string());
  do {
    descriptor_.Reset();
    temporary_ = Temporary(path_);
    descriptor_.Reset(
        ::open(temporary_.name().c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, mode));
    if (descriptor_.get() < 0) {
      const Error error = IoError("cannot create", path_.string());
      temporary_.Release();
      throw error;
    }
  } while (!temporary_.Claim(descriptor_.get()));
}

void AtomicFile::Write(ByteSpan bytes) {
  if (stream_.get() >= 0 && descriptor_.get() < 0) {
    DescriptorSink(stream_.get(), path_.string()).Write(bytes);
  } else {
    PwriteAll(descriptor_.get(), size_, bytes, path_.string());
  }
  size_ += bytes.size();
}

void AtomicFile::Skip(uint64_t count) {
  if (descriptor_.get() < 0) return Sink::Skip(count);
  size_ += count;
}

void AtomicFile::WriteAt(uint64_t offset, ByteSpan bytes) {
  KV_ASSERT(descriptor_.get() >= 0);
  PwriteAll(descriptor_.get(), offset, bytes, path_.string());
}

void AtomicFile::NeedSeeking() {
  if (descriptor_.get() < 0) descriptor_.Reset(OpenSpool());
}

void AtomicFile::Commit() {
  if (rules_.before_commit) rules_.before_commit();
  if (stream_.get() < 0) {
    EndAt(descriptor_.get(), size_, path_.string());
    if (rules_.like) GiveAway(descriptor_.get(), *rules_.like, rules_.like->mode);
    if (::fsync(descriptor_.get()) != 0 && errno != EINVAL)
      throw IoError("cannot write", path_.string());
    return Place();
  }
  if (descriptor_.get() < 0) return;
  DescriptorSink out(stream_.get(), path_.string());
  Bytes buffer(std::min(size_, kCopyBytes));
  for (uint64_t at = 0; at < size_;) {
    const ssize_t got = ::pread(descriptor_.get(), buffer.data(), std::min(size_ - at, kCopyBytes),
                                static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw IoError("cannot read the temporary file of", path_.string());
    out.Write(ByteSpan(buffer).first(static_cast<size_t>(got)));
    at += static_cast<uint64_t>(got);
  }
}

// Links or renames the finished file to its final name.
void AtomicFile::Place() {
  const auto fail = [&] {
    if (errno == EEXIST) RefuseExisting(path_, rules_.overwrite);
    throw IoError("cannot give the temporary file its final name", path_.string());
  };
  if (!temporary_) {
    if (sys::LinkUnnamed(descriptor_.get(), AT_FDCWD, path_.c_str()) == 0)
      return SyncFolder(ParentOf(path_));
    if (errno != EEXIST || rules_.overwrite == Overwrite::kRefuse) fail();
    temporary_ = Temporary(path_);
    temporary_.Claim(descriptor_.get());
    if (sys::LinkUnnamed(descriptor_.get(), AT_FDCWD, temporary_.name().c_str()) != 0) {
      const int why = errno;
      temporary_.Release();
      errno = why;
      fail();
    }
  }
  const bool replaced = rules_.overwrite == Overwrite::kAllow;
  const std::string& name = temporary_.name();
  const int done =
      replaced ? ::rename(name.c_str(), path_.c_str()) : RenameNoReplace(name, path_.string());
  if (done != 0) fail();
  temporary_.Release();
  SyncFolder(ParentOf(path_));
}

using namespace output;
namespace {

constexpr const char* kMarkAttribute = "user.kvtool.output";
constexpr std::string_view kParked = ".kvtool-replaced";

// Returns the folder's path without a trailing slash, and with links resolved.
fs::path FolderPath(fs::path path) {
  if (!path.has_filename()) path = path.parent_path();
  std::error_code failed;
  if (!fs::is_symlink(path, failed)) return path;
  fs::path target = fs::canonical(path, failed);
  if (!failed) return target;
  throw Error(Finding::kUsage, "is a broken link, which kvtool does not replace")
      .File(path.string());
}

void RequireReplaceable(const fs::path& path, const OutputRules& rules) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) {
    throw Error(Finding::kUsage, "is not a folder, but the output is one").File(path.string());
  }
  const bool empty = fs::is_empty(path, failed);
  if (failed) throw Error(Finding::kOpenFailed, failed.message()).File(path.string());
  if (empty || sys::HasMark(path.c_str(), kMarkAttribute)) return;
  if (rules.is_dump != nullptr && rules.is_dump(path.string())) return;
  throw Error(Finding::kUsage,
              "is a folder with contents that kvtool did not write: -f does not replace it")
      .File(path.string())
      .Hint("remove it, or choose another output");
}

fs::path ParkedName(const fs::path& path) {
  fs::path parked = path;
  parked.replace_filename("." + path.filename().string().substr(0, 200) + std::string(kParked));
  return parked;
}

// Undoes an interrupted replacement. Without an atomic exchange, a folder being replaced briefly
// has another name. If a run was killed at that moment, the folder gets its name back, or is
// removed if it has been replaced.
void RestoreParked(const fs::path& path) {
  const fs::path parked = ParkedName(path);
  std::error_code ignored;
  if (!fs::is_directory(fs::symlink_status(parked, ignored))) return;
  if (RenameNoReplace(parked.string(), path.string()) != 0) RemoveOrRemember(parked.string());
}

// Moves a folder to a free name. An error after which it has that name is the lost reply of a
// network file system, and counts as done.
bool MoveFolder(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return true;
  const int why = errno;
  struct stat status;
  const bool is_gone = ::lstat(from.c_str(), &status) != 0 && errno == ENOENT;
  const bool is_there = ::lstat(to.c_str(), &status) == 0;
  errno = why;
  return is_gone && is_there;
}

}  // namespace

void ReplaceFolder(const std::string& fresh, const std::string& path, ExchangeCall exchange) {
  const auto fail = [&] { throw IoError("cannot replace the folder", path); };
  if (exchange(fresh.c_str(), path.c_str()) == 0) return;
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) fail();
  const EndingHeld held;
  const std::string parked = ParkedName(path).string();
  if (!MoveFolder(path, parked)) fail();
  if (!MoveFolder(fresh, path)) {
    const int why = errno;
    if (!MoveFolder(parked, path)) {
      throw Error(Finding::kWriteFailed, "cannot replace the folder: {}; what it held is in {}",
                  std::strerror(why), parked)
          .File(path);
    }
    errno = why;
    fail();
  }
  if (!MoveFolder(parked, fresh)) RemoveOrRemember(parked);
}

void FolderFile::Write(ByteSpan bytes) {
  PwriteAll(descriptor_.get(), size_, bytes, name_);
  size_ += bytes.size();
}

void FolderFile::Close() {
  EndAt(descriptor_.get(), size_, name_);
  const int descriptor = descriptor_.Release();
  if (::close(descriptor) != 0 && errno != EINTR) throw IoError("cannot write", name_);
}

AtomicFolder::AtomicFolder(fs::path path, const OutputRules& rules)
    : path_(FolderPath(std::move(path))), rules_(rules) {
  RestoreParked(path_);
  RefuseExisting(path_, rules_.overwrite);
  std::error_code ignored;
  replaces_ = fs::symlink_status(path_, ignored).type() != fs::file_type::not_found;
  if (replaces_) RequireReplaceable(path_, rules_);
  do {
    descriptor_.Reset();
    working_ = Temporary(path_);
    const char* name = working_.name().c_str();
    if (::mkdir(name, rules_.like ? 0700 : 0777) != 0) {
      const Error error = IoError("cannot create the folder", path_.string());
      working_.Release();
      throw error;
    }
    descriptor_.Reset(::open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (descriptor_.get() < 0) throw IoError("cannot create the folder", path_.string());
  } while (!working_.Claim(descriptor_.get()));
  sys::SetMark(descriptor_.get(), kMarkAttribute);  // without attributes the file gets no mark
}

std::unique_ptr<FolderFile> AtomicFolder::Create(const std::string& name, bool executable) {
  const fs::path path = fs::path(working_.name()) / name;
  if (const fs::path below = fs::path(name).parent_path(); !below.empty()) {
    MakeFolder(below.string());
  }
  WaitIfEnding();
  const mode_t mode = rules_.like ? 0600 : executable ? 0777 : 0666;
  const int descriptor =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  const std::string shown = (path_ / name).string();
  if (descriptor < 0) throw IoError("cannot create", shown);
  if (rules_.like) {
    const uint32_t readers = rules_.like->mode & 0666;
    GiveAway(descriptor, *rules_.like, executable ? WithSearch(readers) : readers);
  }
  return std::make_unique<FolderFile>(descriptor, shown);
}

// Walks up from the deepest folder to one that exists, and down again: files of the same folder
// then cost one call each, however deep it is.
void AtomicFolder::MakeFolder(const std::string& name) {
  WaitIfEnding();
  std::vector<size_t> missing;
  for (size_t end = name.size();;) {
    const std::string path = working_.name() + "/" + name.substr(0, end);
    if (::mkdir(path.c_str(), rules_.like ? 0700 : 0777) == 0) {
      const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      if (descriptor < 0) throw IoError("cannot create the folder", (path_ / name).string());
      SetFolderMode(descriptor);
      ::close(descriptor);
    } else if (errno == ENOENT && name.rfind('/', end - 1) != name.npos) {
      missing.push_back(end);
      end = name.rfind('/', end - 1);
      continue;
    } else if (errno != EEXIST) {
      throw IoError("cannot create the folder", (path_ / name).string());
    }
    if (missing.empty()) return;
    end = missing.back();
    missing.pop_back();
  }
}

void AtomicFolder::SetFolderMode(int descriptor) const {
  if (!rules_.like) return;
  GiveAway(descriptor, *rules_.like, WithSearch(rules_.like->mode & 0666) | 0700);
}

void AtomicFolder::Commit() {
  if (rules_.before_commit) rules_.before_commit();
  SetFolderMode(descriptor_.get());
  if (sys::SyncTree(descriptor_.get(), working_.name().c_str()) != 0)
    throw IoError("cannot write", path_.string());
  if (replaces_) {
    ReplaceFolder(working_.name(), path_.string());
    working_ = Temporary();  // removes the old folder, which now has the temporary name
  } else {
    if (RenameNoReplace(working_.name(), path_.string()) != 0) {
      if (errno == EEXIST || errno == ENOTEMPTY) RefuseExisting(path_, Overwrite::kRefuse);
      throw IoError("cannot give the temporary folder its final name", path_.string());
    }
    working_.Release();
  }
  SyncFolder(ParentOf(path_));
}

}  // namespace kv
