// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "lib/core/base/descriptor.h"
#include "lib/store/database.h"

namespace kv::store {
namespace {

// Bytes of the index that stand for its locks (sqlite3's os.h).
constexpr off_t kPendingByte = 0x40000000, kReservedByte = kPendingByte + 1,
                kSharedBytes = kPendingByte + 2, kCountOfShared = 510;
constexpr off_t kCountOfAll = 2 + kCountOfShared;

// SQLite's data about an open file; SQLite allocates it and calls no constructor.
struct OpenedFile {
  sqlite3_file base;
  IndexFiles* files;
  int descriptor, level;
  bool is_new_name;  // true: a new name, so the folder must be synced, too
};

OpenedFile& Opened(sqlite3_file* file) { return *reinterpret_cast<OpenedFile*>(file); }

int SetLock(int descriptor, short type, off_t at, off_t count) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = at;
  lock.l_len = count;
  while (::fcntl(descriptor, F_OFD_SETLK, &lock) != 0) {
    if (errno == EAGAIN || errno == EACCES) return SQLITE_BUSY;
    if (errno != EINTR) return SQLITE_IOERR_LOCK;
  }
  return SQLITE_OK;
}

int WriteError() { return errno == ENOSPC || errno == EDQUOT ? SQLITE_FULL : SQLITE_IOERR_WRITE; }

}  // namespace

// The functions that SQLite calls. They must not throw: their callers are C.
struct IndexCalls {
  using Refusal = IndexFiles::Refusal;

  static IndexFiles& FilesFor(sqlite3_vfs* vfs) { return *static_cast<IndexFiles*>(vfs->pAppData); }

  static int Refuse(IndexFiles& files, Refusal why, bool is_journal, int result) {
    files.refusal_ = why;
    files.errno_ = errno;
    files.refused_journal_ = is_journal;
    return result;
  }

  static int OpenAt(const IndexFiles& files, const std::string& name, int flags, mode_t mode) {
    const int how = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (mode != 0 ? O_CREAT : 0) |
                    ((flags & SQLITE_OPEN_EXCLUSIVE) != 0 ? O_EXCL : 0);
    const bool writes = (flags & SQLITE_OPEN_READWRITE) != 0;
    const int folder = files.folder().descriptor();
    return ::openat(folder, name.c_str(), how | (writes ? O_RDWR : O_RDONLY), mode);
  }

  // Gives the journal the permissions of the index.
  static void ShareJournal(const IndexFiles& files, int descriptor) {
    struct stat index;
    if (::fstat(files.main_, &index) != 0) return;
    constexpr mode_t kPermissions = 0666;
    ::fchmod(descriptor, index.st_mode & kPermissions);
    if (::geteuid() == 0 && ::fchown(descriptor, index.st_uid, index.st_gid) != 0) errno = 0;
  }

  // Opens for reading what may not be written: an index that cannot be written can often be read.
  static int OpenAllowed(const IndexFiles& files, const std::string& name, int& flags,
                         mode_t mode) {
    const int descriptor = OpenAt(files, name, flags, mode);
    const bool is_denied = descriptor < 0 && (errno == EACCES || errno == EPERM || errno == EROFS);
    if (!is_denied || (flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_CREATE)) != 0)
      return descriptor;
    flags = (flags & ~SQLITE_OPEN_READWRITE) | SQLITE_OPEN_READONLY;
    return OpenAt(files, name, flags, mode);
  }

  // Returns why SQLite may not use the opened file; nothing if it may.
  static std::optional<Refusal> FindRefusal(int descriptor, int flags) {
    if (descriptor < 0) {
      const bool is_other = errno == ELOOP || errno == EISDIR || errno == ENXIO;
      return is_other ? Refusal::kNotRegular : Refusal::kSystem;
    }
    struct stat status;
    if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return Refusal::kNotRegular;
    // A hard link would let SQLite write to a file elsewhere.
    if ((flags & SQLITE_OPEN_READWRITE) != 0 && status.st_nlink > 1) return Refusal::kLinked;
    return std::nullopt;
  }

  static int Open(sqlite3_vfs* vfs, const char* path, sqlite3_file* file, int flags, int* got) {
    IndexFiles& files = FilesFor(vfs);
    file->pMethods = nullptr;
    const bool is_journal = (flags & SQLITE_OPEN_MAIN_JOURNAL) != 0;
    const bool is_ours = is_journal || (flags & SQLITE_OPEN_MAIN_DB) != 0;
    const std::string& name = is_journal ? files.journal_ : files.name_;
    if (!is_ours || path == nullptr || name != path)
      return Refuse(files, Refusal::kOtherName, true, SQLITE_CANTOPEN);
    constexpr mode_t kModeOfIndex = 0644, kModeOfJournal = 0600;
    const bool creates = (flags & SQLITE_OPEN_CREATE) != 0;
    const mode_t mode = !creates ? 0 : is_journal ? kModeOfJournal : kModeOfIndex;
    const int descriptor = OpenAllowed(files, name, flags, mode);
    if (const std::optional<Refusal> why = FindRefusal(descriptor, flags)) {
      if (descriptor >= 0) ::close(descriptor);
      return Refuse(files, *why, is_journal, SQLITE_CANTOPEN);
    }
    if (is_journal && creates) ShareJournal(files, descriptor);
    if (!is_journal) files.main_ = descriptor;
    Opened(file) = {{&kMethods}, &files, descriptor, SQLITE_LOCK_NONE, is_journal && creates};
    if (got != nullptr) *got = flags;
    return SQLITE_OK;
  }

  static int Delete(sqlite3_vfs* vfs, const char* path, int sync_folder) {
    IndexFiles& files = FilesFor(vfs);
    if (files.journal_ != path)
      return Refuse(files, Refusal::kOtherName, true, SQLITE_IOERR_DELETE);
    const int folder = files.folder_.descriptor();
    if (::unlinkat(folder, path, 0) != 0)
      return errno == ENOENT ? SQLITE_IOERR_DELETE_NOENT : SQLITE_IOERR_DELETE;
    return sync_folder != 0 && ::fsync(folder) != 0 ? SQLITE_IOERR_DIR_FSYNC : SQLITE_OK;
  }

  // Tells SQLite that only the journal may exist: stores have no write-ahead log, and names that a
  // journal contains are refused.
  static int Access(sqlite3_vfs* vfs, const char* path, int, int* is_there) {
    IndexFiles& files = FilesFor(vfs);
    *is_there = 0;
    const std::string_view name = path;
    if (name.starts_with(files.name_) && name.substr(files.name_.size()) == "-wal")
      return SQLITE_OK;
    if (name != files.journal_)
      return Refuse(files, Refusal::kOtherName, true, SQLITE_IOERR_ACCESS);
    struct stat status;
    if (::fstatat(files.folder_.descriptor(), path, &status, AT_SYMLINK_NOFOLLOW) == 0) {
      *is_there = !S_ISREG(status.st_mode) || status.st_size > 0 ? 1 : 0;
    } else if (errno != ENOENT) {
      return SQLITE_IOERR_ACCESS;
    }
    return SQLITE_OK;
  }

  static int FullPathname(sqlite3_vfs*, const char* path, int most, char* full) {
    const std::string_view text = path;
    if (text.size() >= static_cast<size_t>(most)) return SQLITE_CANTOPEN;
    std::memcpy(full, path, text.size() + 1);
    return SQLITE_OK;
  }

  static int Close(sqlite3_file* file) {
    OpenedFile& opened = Opened(file);
    if (opened.descriptor == opened.files->main_) opened.files->main_ = -1;
    ::close(opened.descriptor);  // releases the locks
    return SQLITE_OK;
  }

  static int Read(sqlite3_file* file, void* bytes, int count, sqlite3_int64 at) {
    char* to = static_cast<char*>(bytes);
    while (count > 0) {
      const ssize_t got = ::pread(Opened(file).descriptor, to, static_cast<size_t>(count), at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return SQLITE_IOERR_READ;
      if (got == 0) {
        std::memset(to, 0, static_cast<size_t>(count));
        return SQLITE_IOERR_SHORT_READ;
      }
      to += got;
      at += got;
      count -= static_cast<int>(got);
    }
    return SQLITE_OK;
  }

  static int Write(sqlite3_file* file, const void* bytes, int count, sqlite3_int64 at) {
    const ByteSpan all(static_cast<const std::byte*>(bytes), static_cast<size_t>(count));
    const bool done = WriteAll(Opened(file).descriptor, all, static_cast<uint64_t>(at));
    return done ? SQLITE_OK : WriteError();
  }

  static int Truncate(sqlite3_file* file, sqlite3_int64 size) {
    return ::ftruncate(Opened(file).descriptor, size) == 0 ? SQLITE_OK : SQLITE_IOERR_TRUNCATE;
  }

  static int Sync(sqlite3_file* file, int) {
    OpenedFile& opened = Opened(file);
    if (::fsync(opened.descriptor) != 0) return SQLITE_IOERR_FSYNC;
    if (!opened.is_new_name) return SQLITE_OK;
    opened.is_new_name = false;
    const int folder = opened.files->folder_.descriptor();
    return ::fsync(folder) == 0 ? SQLITE_OK : SQLITE_IOERR_DIR_FSYNC;
  }

  static int FileSize(sqlite3_file* file, sqlite3_int64* size) {
    struct stat status;
    if (::fstat(Opened(file).descriptor, &status) != 0) return SQLITE_IOERR_FSTAT;
    *size = status.st_size;
    return SQLITE_OK;
  }

  // Readers share a range, which a writer finally takes alone. Meanwhile the pending byte keeps new
  // readers away; the reserved byte belongs to the only connection that prepares to write.
  static int Lock(sqlite3_file* file, int level) {
    OpenedFile& opened = Opened(file);
    if (opened.level >= level) return SQLITE_OK;
    int result = SQLITE_OK;
    if (level == SQLITE_LOCK_RESERVED) {
      result = SetLock(opened.descriptor, F_WRLCK, kReservedByte, 1);
    } else if (level == SQLITE_LOCK_SHARED) {
      result = SetLock(opened.descriptor, F_RDLCK, kPendingByte, 1);
      if (result != SQLITE_OK) return result;
      result = SetLock(opened.descriptor, F_RDLCK, kSharedBytes, kCountOfShared);
      const int freed = SetLock(opened.descriptor, F_UNLCK, kPendingByte, 1);
      if (result == SQLITE_OK) result = freed;
    } else {
      // A rollback comes from SHARED and does not take the pending byte: two of them would starve
      // each other.
      if (opened.level == SQLITE_LOCK_RESERVED) {
        result = SetLock(opened.descriptor, F_WRLCK, kPendingByte, 1);
        if (result != SQLITE_OK) return result;
        opened.level = SQLITE_LOCK_PENDING;
      }
      result = SetLock(opened.descriptor, F_WRLCK, kSharedBytes, kCountOfShared);
    }
    if (result == SQLITE_OK) opened.level = level;
    return result;
  }

  static int Unlock(sqlite3_file* file, int level) {
    OpenedFile& opened = Opened(file);
    if (opened.level <= level) return SQLITE_OK;
    int result = SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
      result = SetLock(opened.descriptor, F_RDLCK, kSharedBytes, kCountOfShared);
      if (result != SQLITE_OK) return SQLITE_IOERR_RDLOCK;
      result = SetLock(opened.descriptor, F_UNLCK, kPendingByte, 2);
    } else {
      result = SetLock(opened.descriptor, F_UNLCK, kPendingByte, kCountOfAll);
    }
    if (result != SQLITE_OK) return SQLITE_IOERR_UNLOCK;
    opened.level = level;
    return SQLITE_OK;
  }

  static int CheckReservedLock(sqlite3_file* file, int* is_held) {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = kReservedByte;
    lock.l_len = 1;
    const OpenedFile& opened = Opened(file);
    *is_held = 1;
    if (opened.level >= SQLITE_LOCK_RESERVED) return SQLITE_OK;
    if (::fcntl(opened.descriptor, F_OFD_GETLK, &lock) != 0) return SQLITE_IOERR_CHECKRESERVEDLOCK;
    *is_held = lock.l_type != F_UNLCK ? 1 : 0;
    return SQLITE_OK;
  }

  static int FileControl(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
  static int SectorSize(sqlite3_file*) { return 4096; }
  static int Characteristics(sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

  // Version 1 has neither shared memory, hence no write-ahead log, nor a mapping of the file.
  static constexpr sqlite3_io_methods kMethods = {1,
                                                  Close,
                                                  Read,
                                                  Write,
                                                  Truncate,
                                                  Sync,
                                                  FileSize,
                                                  Lock,
                                                  Unlock,
                                                  CheckReservedLock,
                                                  FileControl,
                                                  SectorSize,
                                                  Characteristics,
                                                  nullptr,
                                                  nullptr,
                                                  nullptr,
                                                  nullptr,
                                                  nullptr,
                                                  nullptr};
};

IndexFiles::IndexFiles(const Folder& folder, std::string name)
    : folder_(folder),
      name_(std::move(name)),
      journal_(name_ + "-journal"),
      vfs_name_(fmt::format("kvtool-{}", static_cast<const void*>(this))),
      vfs_(std::make_unique<sqlite3_vfs>()) {
  const sqlite3_vfs* system = sqlite3_vfs_find(nullptr);
  if (system == nullptr) throw Error(Finding::kInternal, "SQLite has no file system to use");
  // Uses the clock, sleep and random numbers of SQLite's own file system.
  vfs_->iVersion = 1;
  vfs_->szOsFile = sizeof(OpenedFile);
  // SQLite reads names of this length into a page, whose size is at least 512.
  vfs_->mxPathname = 500;
  vfs_->zName = vfs_name_.c_str();
  vfs_->pAppData = this;
  vfs_->xOpen = IndexCalls::Open;
  vfs_->xDelete = IndexCalls::Delete;
  vfs_->xAccess = IndexCalls::Access;
  vfs_->xFullPathname = IndexCalls::FullPathname;
  vfs_->xRandomness = system->xRandomness;
  vfs_->xSleep = system->xSleep;
  vfs_->xCurrentTime = system->xCurrentTime;
  vfs_->xGetLastError = system->xGetLastError;
  sqlite3_vfs_register(vfs_.get(), 0);
}

IndexFiles::~IndexFiles() { sqlite3_vfs_unregister(vfs_.get()); }

uint64_t IndexFiles::CountBytes() const {
  constexpr uint64_t kBlock = 512;
  struct stat status;
  if (::fstat(main_, &status) != 0) return 0;
  return std::min(static_cast<uint64_t>(status.st_size),
                  static_cast<uint64_t>(status.st_blocks) * kBlock);
}

std::optional<Error> IndexFiles::refusal() const {
  const std::string path = folder_.Join(refused_journal_ ? journal_ : name_);
  const auto mendable = [&](Finding finding, std::string_view text) {
    return Error(finding, std::string(text)).File(path).Hint(std::string(kRepairHint));
  };
  switch (refusal_) {
    case Refusal::kNone:
      return std::nullopt;
    case Refusal::kSystem:
      return Error(Finding::kOpenFailed, "cannot open: {}", std::strerror(errno_)).File(path);
    case Refusal::kOtherName:
      return mendable(Finding::kUnsafeName, "is not the index, the only file that SQLite may open");
    case Refusal::kNotRegular:
      return mendable(Finding::kUnsafeName, "is a link or not a regular file");
    case Refusal::kLinked:
      return mendable(Finding::kUnsafeName,
                      "has other names (hard links), under which a change would also appear");
  }
  return std::nullopt;
}

}  // namespace kv::store
