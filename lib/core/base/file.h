// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by file.cc, source.cc, spool.cc

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/bytes.h"

struct stat;

namespace kv {

class FetchedFile;
class RangeReader;

// Default limit for inputs that do not tell their size and must be spooled.
constexpr uint64_t kMostOfPipe = uint64_t{64} << 30;
// Default limit for lists, plans and manifests.
constexpr uint64_t kMostOfList = uint64_t{1} << 30;

// Time at which the bytes of a remote input are fetched: all before first use, or each when needed.
enum class FetchMode { kWhole, kAsNeeded };

// Opens "https://..." and similar; returns nullptr if `path` is a plain path.
using UrlOpener = std::unique_ptr<RangeReader> (*)(const std::string& path);
// Sets how Open treats URLs; without an opener they are file names. A program calls it once, before
// it opens anything.
void SetUrlOpener(UrlOpener opener);

// The immutable bytes of an input: a mapped file, a spooled stream, memory or a remote file. Views
// into it stay valid as long as the object exists.
class FileSource {
 public:
  // Maps a regular file. "-" (stdin), pipes, and files whose content is generated on reading
  // (/proc) are first spooled to an unnamed temporary file. A remote file counts as a stream unless
  // it is fetched as needed. Throws kOpenFailed, kReadFailed, kLimit.
  static std::shared_ptr<const FileSource> Open(
      const std::filesystem::path& path, std::optional<uint64_t> most_of_stream = std::nullopt,
      FetchMode fetch = FetchMode::kWhole);
  // Opens small inputs such as configurations or lists. Throws kLimit with the file's name above
  // `most` bytes, from a stream or not; `what` names its purpose: "a summary".
  static std::shared_ptr<const FileSource> OpenSmall(const std::filesystem::path& path,
                                                     uint64_t most, std::string_view what);
  static std::shared_ptr<const FileSource> FromBytes(Bytes bytes, std::string name);
  // Maps an open descriptor's whole file and closes it.
  static std::shared_ptr<const FileSource> FromDescriptor(int descriptor, std::string name);
  // Opens remote bytes, each of which is read only when it is needed.
  static std::shared_ptr<const FileSource> FromRanges(std::unique_ptr<RangeReader> reader,
                                                      std::string name);
  // Returns a range of another source and keeps that source alive.
  static std::shared_ptr<const FileSource> Slice(std::shared_ptr<const FileSource> whole,
                                                 uint64_t offset, uint64_t size, std::string name);
  ~FileSource();
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  ByteSpan bytes() const { return bytes_; }
  uint64_t size() const { return bytes_.size(); }
  const std::string& name() const { return name_; }  // as given on the command line
  bool Contains(const std::byte* p) const {
    return p >= bytes_.data() && p < bytes_.data() + bytes_.size();
  }
  uint64_t OffsetOf(const std::byte* p) const { return static_cast<uint64_t>(p - bytes_.data()); }

  // Fetches a range into bytes(), where a remote file otherwise has zeros. Has no effect on other
  // sources. May be called from several threads. Throws kReadFailed, kWriteFailed.
  void Need(uint64_t offset, uint64_t size) const;
  // Throws kLimit if more than `most` bytes would have to be fetched.
  void NeedAll(uint64_t most = kMostOfPipe) const;

  // Throws kReadFailed if the mapped file was modified since it was opened, judged by its size and
  // modification time.
  void RequireUnchanged() const;

  // Returns the pages of a range to the system, which reads them again when they are touched. This
  // bounds the resident size while a huge mapped file is read.
  void Drop(uint64_t offset, uint64_t size) const;

 private:
  FileSource() = default;
  struct State {
    uint64_t device, inode, size;
    int64_t seconds, nanoseconds;
    bool operator==(const State&) const = default;
  };

  static State ReadState(const struct stat& status);
  static std::shared_ptr<const FileSource> OpenRemote(std::unique_ptr<RangeReader> reader,
                                                      std::string name,
                                                      std::optional<uint64_t> most,
                                                      FetchMode fetch);
  // Returns null for a regular file that cannot be mapped.
  static std::shared_ptr<FileSource> MapDescriptor(int descriptor, std::string name);

  std::string name_;
  ByteSpan bytes_;
  Bytes owned_;
  void* map_ = nullptr;
  std::shared_ptr<FetchedFile> fetched_;     // bytes of a remote file
  std::shared_ptr<const FileSource> whole_;  // the file that a slice belongs to
  std::optional<State> state_;               // state of a mapped file with a name
};

struct SourceFile {
  // name relative to the source, '/'-separated; the file name itself for a single file
  std::string name;
  std::shared_ptr<const FileSource> data;
  bool executable = false;  // by its owner
};

// An input as the user names it: one file, or a folder with all files below it.
struct Source {
  std::string path;  // as given
  bool is_folder = false;
  std::vector<SourceFile> files;                // sorted by name
  std::vector<std::string> empty_folders = {};  // sorted

  // Throws kOpenFailed, kReadFailed, kLimit; links, devices and similar entries of a folder are
  // refused (kUnsafeName). In folders with very many files, the small ones share one spool: a
  // process may have some 65,000 mappings, but an engine that dumps every decoded token writes more
  // files.
  static Source Open(const std::filesystem::path& path,
                     std::optional<uint64_t> most_of_stream = std::nullopt,
                     FetchMode fetch = FetchMode::kWhole);

  uint64_t total_bytes() const;
  void NeedAll(uint64_t most = kMostOfPipe) const;  // calls FileSource::NeedAll for every file
  void RequireUnchanged() const;                    // calls its namesake for every file
  const SourceFile* Find(std::string_view name) const;
  // Returns the file whose bytes hold `p`, or nullptr. Takes logarithmic time for sources returned
  // by Open.
  const SourceFile* FindFile(const std::byte* p) const;

  std::vector<uint32_t> by_address = {};  // indices into `files`, sorted by address
};

// Receives bytes in order.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void Write(ByteSpan bytes) = 0;
  // Appends `count` zeros; in a file they are a hole.
  virtual void Skip(uint64_t count);
};

// Thrown when the reader of a pipe has left, as `head` does. This is not a failure, but the program
// can stop.
class ClosedPipe : public std::exception {
 public:
  const char* what() const noexcept override { return "closed pipe"; }
};

// Writes to a descriptor that it does not own (stdout). Throws kWriteFailed, ClosedPipe.
class DescriptorSink : public Sink {
 public:
  explicit DescriptorSink(int descriptor, std::string name)
      : descriptor_(descriptor), name_(std::move(name)) {}
  void Write(ByteSpan bytes) override;

 private:
  int descriptor_;
  std::string name_;
};

// Opens an unnamed temporary file in TMPDIR, for streams that must be seekable, and returns its
// descriptor.
int OpenSpool();

// Returns true if a stored name may be used below an output folder: relative, without empty, '.' or
// '..' parts, backslash or NUL.
bool IsSafeRelativePath(std::string_view name);

// Reads ranges of immutable bytes elsewhere: on a server, or behind a callback.
class RangeReader {
 public:
  virtual ~RangeReader() = default;
  virtual uint64_t size() const = 0;
  // Fills `to` with the bytes from `offset` on. May be called from several threads. Throws
  // kReadFailed, also if the content has changed meanwhile.
  virtual void Read(uint64_t offset, std::span<std::byte> to) = 0;
};

// A file's bytes, fetched block by block and kept in an unnamed temporary file. Blocks not yet
// fetched read as zeros. Need may be called from several threads.
class FetchedFile {
 public:
  static constexpr uint64_t kBlock = 16 << 10;
  // Limits of one read, and of the reads that run at once for one Need.
  static constexpr uint64_t kMostAtOnce = 8 << 20;
  static constexpr int kMostReads = 4;

  // Throws kWriteFailed if there is no room for a temporary file.
  explicit FetchedFile(std::unique_ptr<RangeReader> reader);
  ~FetchedFile();
  FetchedFile(const FetchedFile&) = delete;
  FetchedFile& operator=(const FetchedFile&) = delete;

  ByteSpan bytes() const { return bytes_; }
  // Returns once the range, limited to the file, is in bytes(). Throws as the reader, and
  // kWriteFailed if the temporary file cannot grow.
  void Need(uint64_t offset, uint64_t size);

 private:
  enum class State : uint8_t { kAbsent, kOnItsWay, kThere };
  struct Run {
    uint64_t first, last;  // blocks [first, last)
    bool settled = false;
  };
  // The runs that one call of Need fetches. The destructor settles each, or other threads would
  // wait forever.
  struct Claimed {
    FetchedFile& file;
    std::vector<Run> runs = {};
    ~Claimed();
  };

  // Claims the missing blocks of [first, last), in runs of at most kMostAtOnce bytes.
  void Claim(uint64_t first, uint64_t last, std::vector<Run>& runs);
  void Fetch(const Run& run);
  void Settle(Run& run, State state);

  std::unique_ptr<RangeReader> reader_;
  int descriptor_ = -1;
  ByteSpan bytes_;
  std::mutex mutex_;
  std::condition_variable settled_;
  std::vector<State> blocks_;
};

// Two stored names that cannot both be restored: equal ones, or a file and a name below it.
struct NameClash {
  std::string_view above, name;
};
// Returns the first pair of names that clash, if any. `compared`, if given, is set to the number of
// bytes compared, which is proportional to the names' total length, however deep they are.
std::optional<NameClash> FindNameClash(std::vector<std::string_view> names,
                                       uint64_t* compared = nullptr);

}  // namespace kv
