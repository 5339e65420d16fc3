// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/bytes.h"

namespace kv {

// The immutable bytes of one input: a mapped file, a spooled stream or memory. Views into it stay
// valid as long as somebody holds the pointer.
class FileSource {
 public:
  // Maps a regular file; "-" (stdin) and pipes are first spooled to an unnamed temporary file.
  // Throws kOpenFailed, kReadFailed.
  static std::shared_ptr<const FileSource> Open(const std::filesystem::path& path);
  static std::shared_ptr<const FileSource> FromBytes(Bytes bytes, std::string name);
  // Maps an open descriptor's whole file and closes it.
  static std::shared_ptr<const FileSource> FromDescriptor(int descriptor, std::string name);
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

  // Gives the pages of a range back to the system (they are read again when touched again): what
  // keeps the resident size bounded while a huge mapped file is walked.
  void Drop(uint64_t offset, uint64_t size) const;

 private:
  FileSource() = default;

  std::string name_;
  ByteSpan bytes_;
  Bytes owned_;
  void* map_ = nullptr;
  std::shared_ptr<const FileSource> whole_;  // of a slice
};

struct SourceFile {
  std::string name;  // relative to the source, '/'-separated; of a single file its own name
  std::shared_ptr<const FileSource> data;
};

// What a user names on the command line: one file, or a folder with all the files below it.
struct Source {
  std::string path;  // as given
  bool is_folder = false;
  std::vector<SourceFile> files;  // sorted by name

  // Throws kOpenFailed, kReadFailed; links inside a folder are refused (kUnsafeName). Of a folder
  // with very many files the small ones share one spool: a process may have some 65,000 mappings,
  // and an engine that dumps every decoded token writes more files than that.
  static Source Open(const std::filesystem::path& path);

  uint64_t total_bytes() const;
  const SourceFile* Find(std::string_view name) const;
  // The file whose bytes hold `p`, or null. Logarithmic for what Open opened.
  const SourceFile* FileOf(const std::byte* p) const;

  std::vector<uint32_t> by_address = {};  // places in `files`, sorted by where their bytes lie
};

// Where bytes go, in order.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void Write(ByteSpan bytes) = 0;
};

class MemorySink : public Sink {
 public:
  void Write(ByteSpan bytes) override { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  Bytes& bytes() { return bytes_; }

 private:
  Bytes bytes_;
};

// A descriptor that this object does not own (stdout). Throws kWriteFailed.
class DescriptorSink : public Sink {
 public:
  explicit DescriptorSink(int descriptor, std::string name)
      : descriptor_(descriptor), name_(std::move(name)) {}
  void Write(ByteSpan bytes) override;

 private:
  int descriptor_;
  std::string name_;
};

enum class Overwrite { kRefuse, kAllow };

// A file that appears under its final name complete or not at all: written without a name (or under
// a temporary one where the file system has no unnamed files), fsynced, then linked or renamed.
// Dropped without Commit, nothing remains. Throws kExists (at construction and, against races, at
// Commit), kWriteFailed.
class AtomicFile : public Sink {
 public:
  AtomicFile(std::filesystem::path path, Overwrite overwrite);
  ~AtomicFile() override;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void Write(ByteSpan bytes) override;
  void WriteAt(uint64_t offset, ByteSpan bytes);
  uint64_t size() const { return size_; }  // bytes written in order by Write
  int descriptor() const { return descriptor_; }
  void Commit();

 private:
  std::filesystem::path path_;
  std::string temporary_;  // empty while the file has no name
  Overwrite overwrite_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

// The same promise for a folder: built under a temporary name beside its final one, then renamed.
// An existing folder is replaced only with kAllow, and only after the new one is complete.
class AtomicFolder {
 public:
  AtomicFolder(std::filesystem::path path, Overwrite overwrite);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  // Where to write meanwhile. Names below it must have passed SafeRelativePath.
  const std::filesystem::path& working_path() const { return working_; }
  void Commit();

 private:
  std::filesystem::path path_, working_;
  Overwrite overwrite_;
  bool committed_ = false;
};

// An unnamed temporary file in TMPDIR, for streams that must be seekable. Returns its descriptor.
int OpenSpool();

// Whether a stored name may be used below an output folder: relative, no empty, '.' or '..' part,
// no backslash or NUL.
bool IsSafeRelativePath(std::string_view name);

// Removes temporary names still in use; safe to call from a signal handler.
void RemoveTemporariesOnSignal();

}  // namespace kv
