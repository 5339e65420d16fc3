// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by output.cc, temporary.cc

#include <fcntl.h>

#include <csignal>
#include <system_error>

#include "lib/core/base/output.h"

// System calls with this project's errors, shared by the files and folders of output.h.
namespace kv::output {

// kWriteFailed with the text of errno.
Error IoError(std::string_view action, const std::string& name);
std::filesystem::path ParentOf(const std::filesystem::path& path);
void SyncFolder(const std::filesystem::path& folder);
// The folder in which `path`, which may be a folder's, is a name.
void SyncNameOf(const std::filesystem::path& path);
// Makes a folder and those above it that are missing, so that a power cut does not take them.
void MakeFolders(const std::filesystem::path& path, std::error_code& failed);
void RefuseExisting(const std::filesystem::path& path, Overwrite overwrite);
// Like rename, but fails with EEXIST if something has the name. Relative names are those of
// `folder`.
int RenameNoReplace(const std::string& from, const std::string& to, int folder = AT_FDCWD);
// Unnamed files get their name through /proc.
bool HasProc();
// True if creating an unnamed file failed because the file system has none.
bool LacksUnnamedFiles(int error);
int LinkDescriptor(int descriptor, int folder, const std::string& name);
void PwriteAll(int descriptor, uint64_t offset, ByteSpan bytes, const std::string& name);
void EndAt(int descriptor, uint64_t size, const std::string& name);
// Sets the owner as far as permitted, and a mode that lets nobody read more than the source's did.
void GiveAway(int descriptor, const Permissions& like, uint32_t mode);
// Adds the right to execute a file, or to search a folder, for everybody who may read it.
uint32_t WithSearch(uint32_t mode);

// No signal ends the program while an object of this class lives, because names are half changed.
class EndingHeld {
 public:
  EndingHeld();
  ~EndingHeld();
  EndingHeld(const EndingHeld&) = delete;
  EndingHeld& operator=(const EndingHeld&) = delete;

 private:
  sigset_t before_;
};

}  // namespace kv::output
