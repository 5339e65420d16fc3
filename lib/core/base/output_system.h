// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <csignal>

#include "lib/core/base/output.h"

// What files and folders of output.h share: calls of the system with this project's errors.
namespace kv::output {

// kWriteFailed with the text of errno.
Error IoError(std::string_view action, const std::string& name);
std::filesystem::path ParentOf(const std::filesystem::path& path);
void SyncFolder(const std::filesystem::path& folder);
void RefuseExisting(const std::filesystem::path& path, Overwrite overwrite);
// As rename, EEXIST where something has the name.
int RenameNoReplace(const std::string& from, const std::string& to);
void PwriteAll(int descriptor, uint64_t offset, ByteSpan bytes, const std::string& name);
void EndAt(int descriptor, uint64_t size, const std::string& name);
// Owner as far as permitted, and a mode that shows nobody more than the source's did.
void GiveAway(int descriptor, const Permissions& like, uint32_t mode);
// Who may read may execute a file, or search a folder.
uint32_t WithSearch(uint32_t mode);

// While one lives, no signal ends the program: names are half changed.
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
