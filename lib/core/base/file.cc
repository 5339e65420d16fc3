// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <utility>

#include "lib/core/base/descriptor.h"
#include "lib/core/base/error.h"
#include "lib/core/base/parallel.h"
#include "lib/core/base/system.h"

namespace kv {

namespace fs = std::filesystem;
namespace {

// Devices such as /dev/zero and terminals may never end.
void RefuseDevice(int descriptor, const std::string& name) {
  struct stat status;
  if (::fstat(descriptor, &status) != 0 || !S_ISCHR(status.st_mode)) return;
  struct stat null;
  if (::stat("/dev/null", &null) == 0 && null.st_rdev == status.st_rdev) return;
  throw Error(Finding::kOpenFailed, "is a character device, which may never end")
      .File(name)
      .Hint("read the bytes you want into a file, or through a pipe: head -c BYTES");
}

// Copies an input that cannot be mapped into an unnamed file. Returns -1 for an empty one, which
// needs no file.
int Spool(int from, const std::string& name, uint64_t most) {
  Descriptor spool(-1);
  Bytes buffer(1 << 20);
  uint64_t total = 0;
  for (;;) {
    const ssize_t got = ::read(from, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw SystemError(Finding::kReadFailed, "cannot read", name);
    if (got == 0) return spool.Release();
    total += static_cast<uint64_t>(got);
    if (total > most) {
      throw Error(Finding::kLimit, "more than {} bytes from a stream", most).File(name);
    }
    if (spool.get() < 0) spool.Reset(OpenSpool());
    DescriptorSink(spool.get(), "temporary spool file")
        .Write(ByteSpan(buffer).first(static_cast<size_t>(got)));
  }
}

std::atomic<UrlOpener> url_opener = nullptr;

}  // namespace

void SetUrlOpener(UrlOpener opener) { url_opener = opener; }

namespace {

// Opens without changing the access time if the file is the user's own: inspecting a file is not
// using it, and operators find idle files by that time.
int OpenToLook(const fs::path& path) {
#ifdef O_NOATIME
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOATIME);
  if (descriptor >= 0 || errno != EPERM) return descriptor;
#endif
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

}  // namespace

std::shared_ptr<const FileSource> FileSource::Open(const fs::path& path,
                                                   std::optional<uint64_t> most_of_stream,
                                                   FetchMode fetch) {
  if (const UrlOpener opener = url_opener) {
    try {
      if (std::unique_ptr<RangeReader> reader = opener(path.string())) {
        return OpenRemote(std::move(reader), path.string(), most_of_stream, fetch);
      }
    } catch (Error& error) {
      throw error.File(path.string());
    }
  }
  const std::string name = path == "-" ? "stdin" : path.string();
  Descriptor file(path == "-" ? ::dup(STDIN_FILENO) : OpenToLook(path));
  struct stat status;
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) {
    throw SystemError(Finding::kOpenFailed, "cannot open", name);
  }
  if (S_ISDIR(status.st_mode)) {
    throw Error(Finding::kOpenFailed, "is a folder, a file was expected").File(name);
  }
  // stdin is read from its current position, which a mapping would ignore.
  if (path != "-" && S_ISREG(status.st_mode) && status.st_size > 0) {
    if (const auto source = MapDescriptor(file.get(), name)) {
      source->state_ = ReadState(status);
      return source;
    }
  }
  RefuseDevice(file.get(), name);
  const int spool = Spool(file.get(), name, most_of_stream.value_or(kMostOfPipe));
  return spool < 0 ? FromBytes({}, path.string()) : FromDescriptor(spool, path.string());
}

std::shared_ptr<const FileSource> FileSource::OpenSmall(const fs::path& path, uint64_t most,
                                                        std::string_view what) {
  auto file = Open(path, most);
  if (file->size() <= most) return file;
  throw Error(Finding::kLimit, "{} of {} bytes; at most {} are read", what, file->size(), most)
      .File(file->name());
}

std::shared_ptr<const FileSource> FileSource::OpenRemote(std::unique_ptr<RangeReader> reader,
                                                         std::string name,
                                                         std::optional<uint64_t> most,
                                                         FetchMode fetch) {
  auto source = FromRanges(std::move(reader), std::move(name));
  if (fetch == FetchMode::kWhole) source->NeedAll(most.value_or(kMostOfPipe));
  return source;
}

std::shared_ptr<const FileSource> FileSource::FromRanges(std::unique_ptr<RangeReader> reader,
                                                         std::string name) {
  auto source = std::shared_ptr<FileSource>(new FileSource);
  source->fetched_ = std::make_shared<FetchedFile>(std::move(reader));
  source->bytes_ = source->fetched_->bytes();
  source->name_ = std::move(name);
  return source;
}

void FileSource::Need(uint64_t offset, uint64_t size) const {
  if (whole_ != nullptr && offset < bytes_.size()) {
    whole_->Need(whole_->OffsetOf(bytes_.data()) + offset,
                 std::min<uint64_t>(size, bytes_.size() - offset));
  }
  if (fetched_ == nullptr) return;
  try {
    fetched_->Need(offset, size);
  } catch (Error& error) {
    throw error.File(name_);
  }
}

void FileSource::NeedAll(uint64_t most) const {
  if (whole_ != nullptr) return Need(0, size());
  if (fetched_ == nullptr) return;
  if (size() > most) {
    throw Error(Finding::kLimit, "{} bytes are to be fetched, the limit is {}", size(), most)
        .File(name_);
  }
  Need(0, size());
}

std::shared_ptr<const FileSource> FileSource::FromBytes(Bytes bytes, std::string name) {
  auto source = std::shared_ptr<FileSource>(new FileSource);
  source->owned_ = std::move(bytes);
  source->bytes_ = source->owned_;
  source->name_ = std::move(name);
  return source;
}

std::shared_ptr<FileSource> FileSource::MapDescriptor(int descriptor, std::string name) {
  auto source = std::shared_ptr<FileSource>(new FileSource);
  source->name_ = std::move(name);
  struct stat status;
  if (::fstat(descriptor, &status) != 0) {
    throw SystemError(Finding::kReadFailed, "cannot stat", source->name_);
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (size > 0) {
    void* map = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (map == MAP_FAILED && errno == ENODEV) return nullptr;
    if (map == MAP_FAILED) throw SystemError(Finding::kReadFailed, "cannot map", source->name_);
    source->map_ = map;
    source->bytes_ = {static_cast<const std::byte*>(map), size};
  }
  return source;
}

std::shared_ptr<const FileSource> FileSource::FromDescriptor(int descriptor, std::string name) {
  const Descriptor owned(descriptor);
  if (auto source = MapDescriptor(descriptor, name)) return source;
  throw Error(Finding::kReadFailed, "cannot be mapped").File(name);
}

FileSource::State FileSource::ReadState(const struct stat& status) {
  const timespec modified = sys::ModifiedAt(status);
  return {static_cast<uint64_t>(status.st_dev), status.st_ino,
          static_cast<uint64_t>(status.st_size), modified.tv_sec, modified.tv_nsec};
}

void FileSource::RequireUnchanged() const {
  struct stat status;
  if (!state_ || ::stat(name_.c_str(), &status) != 0) return;
  const State now = ReadState(status);
  // A new file under the same name does not affect the mapping.
  if (now.device != state_->device || now.inode != state_->inode || now == *state_) return;
  throw Error(Finding::kReadFailed, "changed while it was read").File(name_);
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
  // A page fault also maps neighbouring pages in aligned windows of this size. Pages before the
  // range, in its first window, came back with it and would add up over many calls, so whole
  // windows are dropped.
  constexpr uint64_t kWindow = 64 << 10;
  static const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / kWindow * kWindow;
  const uint64_t stop = std::min<uint64_t>(offset + size, bytes_.size());
  const uint64_t end = stop == bytes_.size() ? stop : stop / page * page;
  if (end > begin) ::madvise(static_cast<char*>(map_) + begin, end - begin, MADV_DONTNEED);
}

void Sink::Skip(uint64_t count) {
  const Bytes zeros(std::min<uint64_t>(count, 1 << 20));
  while (count > 0) {
    const uint64_t step = std::min<uint64_t>(count, zeros.size());
    Write(ByteSpan(zeros).first(step));
    count -= step;
  }
}

void DescriptorSink::Write(ByteSpan bytes) {
  if (WriteAll(descriptor_, bytes)) return;
  if (errno == EPIPE) throw ClosedPipe();
  throw SystemError(Finding::kWriteFailed, "cannot write", name_);
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

std::optional<NameClash> FindNameClash(std::vector<std::string_view> names, uint64_t* compared) {
  uint64_t looked_at = 0;
  // A slash sorts before all other characters, so the names below a folder directly follow its own
  // name.
  std::sort(names.begin(), names.end(), [&](std::string_view a, std::string_view b) {
    const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    looked_at += static_cast<uint64_t>(in_a - a.begin()) + 1;
    if (in_a == a.end() || in_b == b.end()) return in_a == a.end() && in_b != b.end();
    const auto rank = [](char c) { return c == '/' ? 0 : 1 + static_cast<unsigned char>(c); };
    return rank(*in_a) < rank(*in_b);
  });
  if (compared != nullptr) *compared = looked_at;
  for (size_t i = 1; i < names.size(); ++i) {
    const std::string_view above = names[i - 1], name = names[i];
    if (name.starts_with(above) && (name.size() == above.size() || name[above.size()] == '/'))
      return NameClash{above, name};
  }
  return std::nullopt;
}

namespace {

[[noreturn]] void NoRoom(std::string_view action) {
  throw SystemError(Finding::kWriteFailed,
                    fmt::format("cannot {} the temporary file of a remote file", action));
}

}  // namespace

FetchedFile::FetchedFile(std::unique_ptr<RangeReader> reader) : reader_(std::move(reader)) {
  const uint64_t size = reader_->size();
  if (size == 0) return;
  if (size > static_cast<uint64_t>(INT64_MAX)) {
    throw Error(Finding::kLimit, "a remote file of {} bytes", size);
  }
  descriptor_ = OpenSpool();
  void* map = MAP_FAILED;
  if (::ftruncate(descriptor_, static_cast<off_t>(size)) == 0) {
    map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_, 0);
  }
  if (map == MAP_FAILED) {
    const int failure = errno;
    ::close(descriptor_);
    errno = failure;
    NoRoom("size");
  }
  bytes_ = {static_cast<const std::byte*>(map), size};
  blocks_.resize((size + kBlock - 1) / kBlock);
}

FetchedFile::~FetchedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FetchedFile::Need(uint64_t offset, uint64_t size) {
  if (offset >= bytes_.size() || size == 0) return;
  size = std::min(size, bytes_.size() - offset);
  const uint64_t first = offset / kBlock, last = (offset + size - 1) / kBlock + 1;
  for (;;) {
    Claimed claimed{*this};
    Claim(first, last, claimed.runs);
    if (claimed.runs.empty()) return;
    const auto fetch = [&](uint64_t i) {
      Fetch(claimed.runs[i]);
      Settle(claimed.runs[i], State::kThere);
    };
    // If no threads can be started, the runs are fetched one after another.
    std::optional<ThreadPool> pool;
    try {
      if (claimed.runs.size() > 1) {
        pool.emplace(static_cast<int>(std::min<size_t>(claimed.runs.size(), kMostReads)));
      }
    } catch (const Error&) {
    }
    if (!pool) pool.emplace(1);
    pool->ParallelFor(claimed.runs.size(), fetch);
  }
}

FetchedFile::Claimed::~Claimed() {
  for (Run& run : runs) {
    if (!run.settled) file.Settle(run, State::kAbsent);
  }
}

void FetchedFile::Claim(uint64_t first, uint64_t last, std::vector<Run>& runs) {
  constexpr uint64_t kMostBlocks = kMostAtOnce / kBlock;
  std::unique_lock lock(mutex_);
  for (;;) {
    bool waits = false;
    for (uint64_t i = first; i < last; ++i) {
      waits |= blocks_[i] == State::kOnItsWay;
      if (blocks_[i] != State::kAbsent) continue;
      if (runs.empty() || runs.back().last != i || i - runs.back().first == kMostBlocks) {
        runs.push_back({i, i});
      }
      runs.back().last = i + 1;
      blocks_[i] = State::kOnItsWay;
    }
    if (!runs.empty() || !waits) return;
    settled_.wait(lock);  // tries again here if another thread failed to fetch this run
  }
}

void FetchedFile::Fetch(const Run& run) {
  const uint64_t begin = run.first * kBlock,
                 end = std::min<uint64_t>(run.last * kBlock, bytes_.size());
  Bytes buffer(end - begin);
  reader_->Read(begin, buffer);
  // Writes by a call, not through the mapping: a full disk is then an error, not a signal.
  if (!WriteAll(descriptor_, buffer, begin)) NoRoom("write");
}

void FetchedFile::Settle(Run& run, State state) {
  const std::lock_guard lock(mutex_);
  std::fill(blocks_.begin() + static_cast<ptrdiff_t>(run.first),
            blocks_.begin() + static_cast<ptrdiff_t>(run.last), state);
  run.settled = true;
  settled_.notify_all();
}

}  // namespace kv
