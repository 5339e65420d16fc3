// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>

#include "lib/base/error.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

Error IoError(Finding finding, std::string_view action, const std::string& name) {
  Error error(finding, fmt::format("{}: {}", action, std::strerror(errno)));
  error.File(name);
  return error;
}

void WriteAll(int descriptor, ByteSpan bytes, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw IoError(Finding::kWriteFailed, "cannot write", name);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

// Devices such as /dev/zero and terminals may never end.
void RefuseDevice(int descriptor, const std::string& name) {
  struct stat status;
  if (::fstat(descriptor, &status) != 0 || !S_ISCHR(status.st_mode)) return;
  struct stat null;
  if (::stat("/dev/null", &null) == 0 && null.st_rdev == status.st_rdev) return;
  throw Error(Finding::kOpenFailed, "is a character device, which may never end")
      .File(name)
      .Hint("read what is wanted of it into a file, or through a pipe: head -c BYTES");
}

// Copies a stream that cannot be mapped into an unnamed file.
int Spool(int from, const std::string& name) {
  const int spool = OpenSpool();
  Bytes buffer(1 << 20);
  for (;;) {
    const ssize_t got = ::read(from, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const Error error = IoError(Finding::kReadFailed, "cannot read", name);
      ::close(spool);
      throw error;
    }
    if (got == 0) return spool;
    WriteAll(spool, ByteSpan(buffer).first(static_cast<size_t>(got)), "temporary spool file");
  }
}

// Temporary names that a signal handler must remove: a fixed table of heap strings.
std::array<std::atomic<const char*>, 64> temporaries;

void RememberTemporary(const std::string& name) {
  // A signal may come while a name is being forgotten, so names are never freed.
  static std::mutex mutex;
  static auto* const names = new std::set<std::string>;
  std::unique_lock lock(mutex);
  const char* copy = names->insert(name).first->c_str();
  lock.unlock();
  for (auto& slot : temporaries) {
    const char* expected = nullptr;
    if (slot.compare_exchange_strong(expected, copy)) return;
  }  // table full: only the signal path loses this name
}

void ForgetTemporary(const std::string& name) {
  for (auto& slot : temporaries) {
    const char* held = slot.load();
    if (held != nullptr && name == held && slot.compare_exchange_strong(held, nullptr)) return;
  }
}

std::string TemporaryName(const fs::path& path) {
  static std::atomic<unsigned> counter{0};
  fs::path name = path;
  name.replace_filename(
      fmt::format(".{}.{}-{}.tmp", path.filename().string(), ::getpid(), counter++));
  return name.string();
}

fs::path ParentOf(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

void SyncFolder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // the data is safe; only the name's durability is best effort
  ::fsync(descriptor);
  ::close(descriptor);
}

void RefuseExisting(const fs::path& path, Overwrite overwrite) {
  if (overwrite == Overwrite::kAllow) return;
  std::error_code ignored;
  if (fs::symlink_status(path, ignored).type() == fs::file_type::not_found) return;
  throw Error(Finding::kExists, "exists").File(path.string()).Hint("use -f/--force to overwrite");
}

}  // namespace

std::shared_ptr<const FileSource> FileSource::Open(const fs::path& path) {
  if (path == "-") {
    RefuseDevice(STDIN_FILENO, "stdin");
    return FromDescriptor(Spool(STDIN_FILENO, "stdin"), "-");
  }
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw IoError(Finding::kOpenFailed, "cannot open", path.string());
  struct stat status;
  if (::fstat(descriptor, &status) != 0 || S_ISDIR(status.st_mode)) {
    ::close(descriptor);
    throw Error(Finding::kOpenFailed, "is a folder, a file was expected").File(path.string());
  }
  if (S_ISREG(status.st_mode)) return FromDescriptor(descriptor, path.string());
  try {
    RefuseDevice(descriptor, path.string());
  } catch (...) {
    ::close(descriptor);
    throw;
  }
  const int spool = Spool(descriptor, path.string());
  ::close(descriptor);
  return FromDescriptor(spool, path.string());
}

std::shared_ptr<const FileSource> FileSource::FromBytes(Bytes bytes, std::string name) {
  auto source = std::shared_ptr<FileSource>(new FileSource);
  source->owned_ = std::move(bytes);
  source->bytes_ = source->owned_;
  source->name_ = std::move(name);
  return source;
}

std::shared_ptr<const FileSource> FileSource::FromDescriptor(int descriptor, std::string name) {
  auto source = std::shared_ptr<FileSource>(new FileSource);
  source->name_ = std::move(name);
  struct stat status;
  if (::fstat(descriptor, &status) != 0) {
    const Error error = IoError(Finding::kReadFailed, "cannot stat", source->name_);
    ::close(descriptor);
    throw error;
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (size > 0) {
    void* map = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (map == MAP_FAILED) {
      const Error error = IoError(Finding::kReadFailed, "cannot map", source->name_);
      ::close(descriptor);
      throw error;
    }
    source->map_ = map;
    source->bytes_ = {static_cast<const std::byte*>(map), size};
  }
  ::close(descriptor);
  return source;
}

FileSource::~FileSource() {
  if (map_ != nullptr) ::munmap(map_, bytes_.size());
}

std::shared_ptr<const FileSource> FileSource::Slice(std::shared_ptr<const FileSource> whole,
                                                    uint64_t offset, uint64_t size,
                                                    std::string name) {
  auto source = std::shared_ptr<FileSource>(new FileSource);
  source->bytes_ = whole->bytes_.subspan(offset, size);
  source->name_ = std::move(name);
  source->whole_ = std::move(whole);
  return source;
}

void FileSource::Drop(uint64_t offset, uint64_t size) const {
  if (whole_ != nullptr) return whole_->Drop(whole_->OffsetOf(bytes_.data()) + offset, size);
  if (map_ == nullptr || size == 0) return;
  // A fault maps its neighbours too, in aligned windows of this size: what lies before the range in
  // the first window came back with it and would add up over many calls.
  constexpr uint64_t kWindow = 64 << 10;
  static const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / kWindow * kWindow;
  const uint64_t stop = std::min<uint64_t>(offset + size, bytes_.size());
  const uint64_t end = stop == bytes_.size() ? stop : stop / page * page;
  if (end > begin) ::madvise(static_cast<char*>(map_) + begin, end - begin, MADV_DONTNEED);
}

void DescriptorSink::Write(ByteSpan bytes) { WriteAll(descriptor_, bytes, name_); }

AtomicFile::AtomicFile(fs::path path, Overwrite overwrite)
    : path_(std::move(path)), overwrite_(overwrite) {
  RefuseExisting(path_, overwrite);
  descriptor_ = ::open(ParentOf(path_).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  if (descriptor_ >= 0) return;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL) {
    throw IoError(Finding::kWriteFailed, "cannot create", path_.string());
  }
  temporary_ = TemporaryName(path_);
  descriptor_ = ::open(temporary_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw IoError(Finding::kWriteFailed, "cannot create", path_.string());
  RememberTemporary(temporary_);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
    ForgetTemporary(temporary_);
  }
}

void AtomicFile::Write(ByteSpan bytes) {
  WriteAt(size_, bytes);
  size_ += bytes.size();
}

void AtomicFile::WriteAt(uint64_t offset, ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      throw IoError(Finding::kWriteFailed, "cannot write", path_.string());
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void AtomicFile::Commit() {
  if (::fsync(descriptor_) != 0 && errno != EINVAL) {
    throw IoError(Finding::kWriteFailed, "cannot write", path_.string());
  }
  const auto fail = [&] {
    if (errno == EEXIST) RefuseExisting(path_, overwrite_);
    throw IoError(Finding::kWriteFailed, "cannot name the finished file", path_.string());
  };
  if (temporary_.empty()) {
    const std::string unnamed = fmt::format("/proc/self/fd/{}", descriptor_);
    const auto link_as = [&](const std::string& name) {
      return ::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
    };
    if (link_as(path_.string())) {
      SyncFolder(ParentOf(path_));
      return;
    }
    if (errno != EEXIST || overwrite_ == Overwrite::kRefuse) fail();
    temporary_ = TemporaryName(path_);
    if (!link_as(temporary_)) {
      temporary_.clear();
      fail();
    }
    RememberTemporary(temporary_);
  }
  if (overwrite_ == Overwrite::kRefuse) {
    if (::link(temporary_.c_str(), path_.c_str()) != 0) fail();  // unlike rename, never replaces
    return;  // the destructor removes the other name
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail();
  ForgetTemporary(temporary_);
  temporary_.clear();
  SyncFolder(ParentOf(path_));
}

AtomicFolder::AtomicFolder(fs::path path, Overwrite overwrite)
    : path_(std::move(path)), overwrite_(overwrite) {
  if (!path_.has_filename()) path_ = path_.parent_path();  // "out/"
  RefuseExisting(path_, overwrite);
  working_ = TemporaryName(path_);
  if (::mkdir(working_.c_str(), 0777) != 0) {
    throw IoError(Finding::kWriteFailed, "cannot create folder", path_.string());
  }
}

AtomicFolder::~AtomicFolder() {
  if (committed_) return;
  std::error_code ignored;
  fs::remove_all(working_, ignored);
}

void AtomicFolder::Commit() {
  std::error_code failed;
  const fs::path old = TemporaryName(path_);
  const bool replace = overwrite_ == Overwrite::kAllow && fs::exists(path_);
  if (replace) {
    fs::rename(path_, old, failed);
    if (failed) throw Error(Finding::kWriteFailed, failed.message()).File(path_.string());
  }
  fs::rename(working_, path_, failed);
  if (failed) throw Error(Finding::kWriteFailed, failed.message()).File(path_.string());
  committed_ = true;
  if (replace) fs::remove_all(old, failed);
  SyncFolder(ParentOf(path_));
}

int OpenSpool() {
  std::error_code ignored;
  const fs::path folder = fs::temp_directory_path(ignored);
  std::string name = (folder / "kvtool-spool-XXXXXX").string();
  const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor < 0)
    throw IoError(Finding::kWriteFailed, "cannot create a temporary file", folder.string());
  ::unlink(name.c_str());
  return descriptor;
}

bool IsSafeRelativePath(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\\') != name.npos ||
      name.find('\0') != name.npos) {
    return false;
  }
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

void RemoveTemporariesOnSignal() {
  for (auto& slot : temporaries) {
    const char* name = slot.load();
    if (name != nullptr) ::unlink(name);
  }
}

}  // namespace kv
