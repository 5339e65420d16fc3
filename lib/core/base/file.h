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

// The most bytes read of an input that does not tell its size and must be spooled, unless the
// caller sets a limit.
constexpr uint64_t kMostOfPipe = uint64_t{64} << 30;
// The same for lists, plans and manifests.
constexpr uint64_t kMostOfList = uint64_t{1} << 30;

// How the bytes of a remote input come: all before it is used, or those that are asked for.
enum class FetchMode { kWhole, kAsNeeded };

// Opens "https://..." and the like; null if `path` is a plain path.
using UrlOpener = std::unique_ptr<RangeReader> (*)(const std::string& path);
// What Open does with URLs; without it they are names of files. A program sets it once, before it
// opens anything.
void SetUrlOpener(UrlOpener opener);

// The immutable bytes of one input: a mapped file, a spooled stream, memory or a remote file. Views
// into it stay valid while somebody holds the pointer.
class FileSource {
 public:
  // Maps a regular file; "-" (stdin), pipes, and files whose contents are made when read (/proc)
  // are first spooled to an unnamed temporary file. A remote file counts as a stream unless it
  // comes as needed. Throws kOpenFailed, kReadFailed, kLimit.
  static std::shared_ptr<const FileSource> Open(
      const std::filesystem::path& path, std::optional<uint64_t> most_of_stream = std::nullopt,
      FetchMode fetch = FetchMode::kWhole);
  // The same for what is small, such as a configuration or a list. Throws kLimit with the file's
  // name above `most` bytes, from a stream or not; `what` it is taken for: "a summary".
  static std::shared_ptr<const FileSource> OpenSmall(const std::filesystem::path& path,
                                                     uint64_t most, std::string_view what);
  static std::shared_ptr<const FileSource> FromBytes(Bytes bytes, std::string name);
  // Maps an open descriptor's whole file and closes it.
  static std::shared_ptr<const FileSource> FromDescriptor(int descriptor, std::string name);
  // Nothing is read before somebody needs it.
  static std::shared_ptr<const FileSource> FromRanges(std::unique_ptr<RangeReader> reader,
                                                      std::string name);
  // A range of another source, which it keeps alive.
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

  // Brings a range into bytes(), where those of a remote file are zeros before. Does nothing for
  // other sources. Threads may call it at once. Throws kReadFailed, kWriteFailed.
  void Need(uint64_t offset, uint64_t size) const;
  // Throws kLimit if more than `most` bytes would have to come.
  void NeedAll(uint64_t most = kMostOfPipe) const;

  // Throws kReadFailed if the mapped file was written to since it was opened, as far as the system
  // tells: by its size and the time of its last change.
  void RequireUnchanged() const;

  // Gives the pages of a range back to the system, which reads them again when touched. This bounds
  // the resident size while somebody walks a huge mapped file.
  void Drop(uint64_t offset, uint64_t size) const;

 private:
  FileSource() = default;
  struct State {
    uint64_t device, inode, size;
    int64_t seconds, nanoseconds;
    bool operator==(const State&) const = default;
  };

  static State StateOf(const struct stat& status);
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
  std::shared_ptr<FetchedFile> fetched_;     // of a remote file
  std::shared_ptr<const FileSource> whole_;  // of a slice
  std::optional<State> state_;               // of a mapped file with a name
};

struct SourceFile {
  std::string name;  // relative to the source, '/'-separated; of a single file its own name
  std::shared_ptr<const FileSource> data;
  bool executable = false;  // by its owner
};

// An input as the user names it: one file, or a folder with all the files below it.
struct Source {
  std::string path;  // as given
  bool is_folder = false;
  std::vector<SourceFile> files;                // sorted by name
  std::vector<std::string> empty_folders = {};  // sorted

  // Throws kOpenFailed, kReadFailed, kLimit; links, devices and the like inside a folder are
  // refused (kUnsafeName). In a folder with very many files the small ones share one spool: a
  // process may have some 65,000 mappings, but an engine that dumps every decoded token writes more
  // files.
  static Source Open(const std::filesystem::path& path,
                     std::optional<uint64_t> most_of_stream = std::nullopt,
                     FetchMode fetch = FetchMode::kWhole);

  uint64_t total_bytes() const;
  void NeedAll(uint64_t most = kMostOfPipe) const;  // as FileSource's, of every file
  void RequireUnchanged() const;                    // as FileSource's, of every file
  const SourceFile* Find(std::string_view name) const;
  // The file whose bytes hold `p`, or null. Takes logarithmic time for sources that Open returned.
  const SourceFile* FileOf(const std::byte* p) const;

  std::vector<uint32_t> by_address = {};  // places in `files`, sorted by where their bytes lie
};

// Takes bytes in order.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void Write(ByteSpan bytes) = 0;
  // Appends `count` zeros; in a file they are a hole.
  virtual void Skip(uint64_t count);
};

// Thrown when the reader at the other end of a pipe has left, as `head` does. This is not a
// failure, but nothing is left to do.
class ClosedPipe : public std::exception {
 public:
  const char* what() const noexcept override { return "closed pipe"; }
};

class MemorySink : public Sink {
 public:
  void Write(ByteSpan bytes) override { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  Bytes& bytes() { return bytes_; }

 private:
  Bytes bytes_;
};

// A descriptor that this object does not own (stdout). Throws kWriteFailed, ClosedPipe.
class DescriptorSink : public Sink {
 public:
  explicit DescriptorSink(int descriptor, std::string name)
      : descriptor_(descriptor), name_(std::move(name)) {}
  void Write(ByteSpan bytes) override;

 private:
  int descriptor_;
  std::string name_;
};

// An unnamed temporary file in TMPDIR, for streams that must be seekable. Returns its descriptor.
int OpenSpool();

// Whether a stored name may be used below an output folder: relative, no empty, '.' or '..' part,
// no backslash or NUL.
bool IsSafeRelativePath(std::string_view name);

// Reads ranges of bytes that lie elsewhere and do not change: on a server, behind a callback.
class RangeReader {
 public:
  virtual ~RangeReader() = default;
  virtual uint64_t size() const = 0;
  // Fills `to` with the bytes from `offset` on. Several threads may call it at once. Throws
  // kReadFailed, also if what is read has changed meanwhile.
  virtual void Read(uint64_t offset, std::span<std::byte> to) = 0;
};

// A file's bytes, brought in block by block and kept in an unnamed temporary file. What was not
// brought in reads as zeros. Threads may call Need at once.
class FetchedFile {
 public:
  static constexpr uint64_t kBlock = 16 << 10;
  // What one call of the reader brings at most, and how many run at once for one Need.
  static constexpr uint64_t kMostAtOnce = 8 << 20;
  static constexpr int kMostReads = 4;

  // Throws kWriteFailed if there is no room for a temporary file.
  explicit FetchedFile(std::unique_ptr<RangeReader> reader);
  ~FetchedFile();
  FetchedFile(const FetchedFile&) = delete;
  FetchedFile& operator=(const FetchedFile&) = delete;

  ByteSpan bytes() const { return bytes_; }
  // Returns when the range, cut to the file, is in bytes(). Throws what the reader throws, and
  // kWriteFailed if the temporary file cannot grow.
  void Need(uint64_t offset, uint64_t size);

 private:
  enum class State : uint8_t { kAbsent, kOnItsWay, kThere };
  struct Run {
    uint64_t first, last;  // blocks [first, last)
    bool settled = false;
  };
  // Runs that one call of Need fetches. Each is settled in the end, or others would wait for ever.
  struct Claimed {
    FetchedFile& file;
    std::vector<Run> runs = {};
    ~Claimed();
  };

  // Claims the absent blocks of [first, last) in runs of at most kMostAtOnce bytes.
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

// Two stored names that cannot both be restored: equal ones, or a file and what lies below it.
struct NameClash {
  std::string_view above, name;
};
// Finds the first such pair, if any. `compared`, if given, is set to the bytes that were looked at,
// which grow as the names do, however deep they are.
std::optional<NameClash> FindNameClash(std::vector<std::string_view> names,
                                       uint64_t* compared = nullptr);

}  // namespace kv
