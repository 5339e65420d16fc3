// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "lib/core/base/error.h"
#include "lib/core/base/output.h"

namespace kv {
namespace fs = std::filesystem;
using namespace output;
namespace {

constexpr const char* kMarkAttribute = "user.kvtool.output";
constexpr std::string_view kParked = ".kvtool-replaced";

bool IsMarked(const fs::path& folder) {
  return ::getxattr(folder.c_str(), kMarkAttribute, nullptr, 0) >= 0;
}

// "out/" is "out", a link is what it stands for.
fs::path FolderPath(fs::path path) {
  if (!path.has_filename()) path = path.parent_path();
  std::error_code failed;
  if (!fs::is_symlink(path, failed)) return path;
  fs::path target = fs::canonical(path, failed);
  if (!failed) return target;
  throw Error(Finding::kUsage, "is a link to nothing, which no output replaces")
      .File(path.string());
}

void RequireReplaceable(const fs::path& path, const OutputRules& rules) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) {
    throw Error(Finding::kUsage, "is not a folder, but the output is one").File(path.string());
  }
  const bool empty = fs::is_empty(path, failed);
  if (failed) throw Error(Finding::kOpenFailed, failed.message()).File(path.string());
  if (empty || IsMarked(path)) return;
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

// Without an exchange of names a folder being replaced has another name for a moment. A run that
// was killed in it left the folder there: it is given its name back, or removed if it was replaced.
void RestoreParked(const fs::path& path) {
  const fs::path parked = ParkedName(path);
  std::error_code ignored;
  if (!fs::is_directory(fs::symlink_status(parked, ignored))) return;
  if (RenameNoReplace(parked.string(), path.string()) != 0) RemoveOrRemember(parked.string());
}

}  // namespace

int ExchangeNames(const char* a, const char* b) {
  return ::renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

void ReplaceFolder(const std::string& fresh, const std::string& path, ExchangeCall exchange) {
  const auto fail = [&] { throw IoError("cannot replace the folder", path); };
  if (exchange(fresh.c_str(), path.c_str()) == 0) return;
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) fail();
  const EndingHeld held;
  const std::string parked = ParkedName(path).string();
  if (::rename(path.c_str(), parked.c_str()) != 0) fail();
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    const int why = errno;
    if (::rename(parked.c_str(), path.c_str()) != 0) {
      throw Error(Finding::kWriteFailed,
                  "cannot replace the folder: {}; what it held "
                  "is in {}",
                  std::strerror(why), parked)
          .File(path);
    }
    errno = why;
    fail();
  }
  if (::rename(parked.c_str(), fresh.c_str()) != 0) RemoveOrRemember(parked);
}

FolderFile::~FolderFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FolderFile::Write(ByteSpan bytes) {
  PwriteAll(descriptor_, size_, bytes, name_);
  size_ += bytes.size();
}

void FolderFile::Close() {
  EndAt(descriptor_, size_, name_);
  const int descriptor = std::exchange(descriptor_, -1);
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
    if (descriptor_ >= 0) ::close(descriptor_);
    working_ = Temporary(path_);
    const char* name = working_.name().c_str();
    if (::mkdir(name, rules_.like ? 0700 : 0777) != 0) {
      const Error error = IoError("cannot create the folder", path_.string());
      working_.Release();
      throw error;
    }
    descriptor_ = ::open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor_ < 0) throw IoError("cannot create the folder", path_.string());
  } while (!working_.Claim(descriptor_));
  ::fsetxattr(descriptor_, kMarkAttribute, "1", 1, 0);  // where there are no attributes, no mark
}

AtomicFolder::~AtomicFolder() {
  if (descriptor_ >= 0) ::close(descriptor_);
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

// From the deepest folder up to one that exists, and down again: files of one folder cost one call
// each, however deep it is.
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
  SetFolderMode(descriptor_);
  if (::syncfs(descriptor_) != 0) throw IoError("cannot write", path_.string());
  if (replaces_) {
    ReplaceFolder(working_.name(), path_.string());
    working_ = Temporary();  // removes what was there, which has that name now
  } else {
    if (RenameNoReplace(working_.name(), path_.string()) != 0) {
      if (errno == EEXIST || errno == ENOTEMPTY) RefuseExisting(path_, Overwrite::kRefuse);
      throw IoError("cannot name the finished folder", path_.string());
    }
    working_.Release();
  }
  SyncFolder(ParentOf(path_));
}

}  // namespace kv
