// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>

#include "lib/core/base/descriptor.h"
#include "lib/core/base/file.h"
#include "lib/core/base/system.h"
#include "lib/core/base/temporary.h"

// The only way to write a file (AtomicFile) or a folder (AtomicFolder).
namespace kv {

enum class Overwrite { kRefuse, kAllow };

// Access rights of a source, which its outputs take over.
struct Permissions {
  uint32_t mode = 0;  // mode of a file, 0777
  uid_t owner = 0;
  gid_t group = 0;

  // Returns the rights of a file, or those that a folder and every file below it have in common,
  // without execution. Returns nullopt for anything else.
  static std::optional<Permissions> Of(const std::filesystem::path& path);
  // Returns rights for converted contents, which need no execution.
  Permissions ForOtherContents() const { return {mode & 0666, owner, group}; }
};

struct OutputRules {
  OutputRules(Overwrite o = Overwrite::kRefuse) : overwrite(o) {}  // NOLINT: a rule of its own

  Overwrite overwrite;
  // If empty, the umask decides.
  std::optional<Permissions> like = std::nullopt;
  // Tells whether everything in an existing folder belongs to a dump. With kAllow, a folder is
  // replaced only if it is empty, was written by kvtool, or this function returns true.
  bool (*is_dump)(const std::string& folder) = nullptr;
  // Called by Commit before the output gets its name. If it throws, nothing is left behind.
  std::function<void()> before_commit = {};
};

// A file that appears under its final name complete or not at all: it is written without a name (or
// under a temporary one if the system has no unnamed files), fsynced, then linked or renamed.
// Without Commit nothing remains. Only regular files are replaced; a link stays and its target is
// replaced. Character devices, FIFOs and descriptors ("-", /dev/stdout, /dev/fd/N) are streams:
// they are written through, in order. Throws kExists (at construction and, against races, at
// Commit), kUsage for paths that cannot be an output, kWriteFailed, ClosedPipe.
class AtomicFile : public Sink {
 public:
  AtomicFile(std::filesystem::path path, const OutputRules& rules);

  void Write(ByteSpan bytes) override;
  void Skip(uint64_t count) override;
  // May be called only for files, or after NeedSeeking.
  void WriteAt(uint64_t offset, ByteSpan bytes);
  // Must be called first by writers that seek back; a stream is then spooled until Commit.
  void NeedSeeking();
  bool is_stream() const { return stream_.get() >= 0; }
  uint64_t size() const { return size_; }  // bytes written in order
  int descriptor() const { return descriptor_.get(); }
  void Commit();

 private:
  void OpenForReplacing();
  void Place();

  std::filesystem::path path_;
  OutputRules rules_;
  Temporary temporary_;  // empty while the file has no name
  Descriptor descriptor_, stream_;
  uint64_t size_ = 0;
};

// One file of an AtomicFolder.
class FolderFile : public Sink {
 public:
  FolderFile(int descriptor, std::string name) : descriptor_(descriptor), name_(std::move(name)) {}

  void Write(ByteSpan bytes) override;
  void Skip(uint64_t count) override { size_ += count; }
  void Close();  // throws kWriteFailed

 private:
  Descriptor descriptor_;
  std::string name_;
  uint64_t size_ = 0;
};

// A folder with the guarantee of AtomicFile: it is built under a temporary name beside its final
// one, then exchanged with the old folder, atomically if the file system can. An extended
// attribute, never a file, marks folders that kvtool wrote.
class AtomicFolder {
 public:
  AtomicFolder(std::filesystem::path path, const OutputRules& rules);

  // Creates a file and the folders in its name. Names must have passed IsSafeRelativePath.
  std::unique_ptr<FolderFile> Create(const std::string& name, bool executable = false);
  void MakeFolder(const std::string& name);
  void Commit();

 private:
  void SetFolderMode(int descriptor) const;

  std::filesystem::path path_;
  OutputRules rules_;
  Temporary working_;
  Descriptor descriptor_;
  bool replaces_ = false;
};

// Returns the descriptor that a path denotes: 1 for "-" and /dev/stdout, N for /dev/fd/N.
std::optional<int> DescriptorNamed(const std::filesystem::path& path);

// Exchanges the folders `fresh` and `path`. If the file system cannot exchange two names, uses two
// renames and undoes the first if the second fails. Throws kWriteFailed and then leaves `path`
// unchanged.
using ExchangeCall = int (*)(const char* a, const char* b);
void ReplaceFolder(const std::string& fresh, const std::string& path,
                   ExchangeCall exchange = sys::ExchangeNames);

}  // namespace kv

// Wraps system calls, whose failures throw kv::Error. Shared by the files and folders of output.h.
namespace kv::output {

inline Error IoError(std::string_view action, const std::string& name) {
  return SystemError(Finding::kWriteFailed, action, name);
}
void SyncFolder(const std::filesystem::path& folder);
// Syncs the folder that contains the name `path`, which may itself be a folder.
void SyncName(const std::filesystem::path& path);
// Creates a folder and its missing parents, durably.
void MakeFolders(const std::filesystem::path& path, std::error_code& failed);
void RefuseExisting(const std::filesystem::path& path, Overwrite overwrite);
// Renames, but fails with EEXIST if the name exists. Relative names are relative to `folder`.
int RenameNoReplace(const std::string& from, const std::string& to, int folder = AT_FDCWD);
// Returns true if creating an unnamed file failed because the system or the file system has none.
bool LacksUnnamedFiles(int error);
void PwriteAll(int descriptor, uint64_t offset, ByteSpan bytes, const std::string& name);
void EndAt(int descriptor, uint64_t size, const std::string& name);
// Sets the owner as far as permitted, and a mode that lets no user read more than the source's did.
void GiveAway(int descriptor, const Permissions& like, uint32_t mode);
// Adds the right to execute a file, or to search a folder, for everyone who may read it.
uint32_t WithSearch(uint32_t mode);

}  // namespace kv::output
