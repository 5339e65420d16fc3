// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kv::gate {

// Reads a folder that an engine wrote. Sizes and counts are bounded, and only regular files are
// read. Each path has a name for reports beside it.
class LogFolder {
 public:
  LogFolder(std::filesystem::path path, std::string shown)
      : path_(std::move(path)), shown_(std::move(shown)) {}

  const std::string& shown() const { return shown_; }
  std::string Shown(const std::string& name) const { return shown_ + "/" + name; }
  bool exists() const;
  LogFolder Sub(const std::string& name) const { return {path_ / name, Shown(name)}; }
  // The names of the regular files, or of the folders, directly in it, sorted. Files that are not
  // wanted, such as dumps, do not count towards the limit. Throws kLimit.
  using Wanted = bool (*)(std::string_view name);
  std::vector<std::string> Files(Wanted wanted = nullptr) const { return Names(false, wanted); }
  std::vector<std::string> Folders() const { return Names(true, nullptr); }
  bool Has(const std::string& name) const;
  // Returns the whole text of a file, or nothing if there is none. Throws kReadFailed, kLimit.
  std::optional<std::string> Text(const std::string& name) const;

 private:
  std::vector<std::string> Names(bool folders, Wanted wanted) const;

  std::filesystem::path path_;
  std::string shown_;
};

std::string ReadLog(const std::filesystem::path& path, const std::string& shown);

// Converts a log to UTF-8. A shell's redirection may have written it as UTF-16 of either byte
// order, with or without a byte order mark, or switched encodings within the file. The result has
// no zero bytes, so that searches for words find them; all other bytes stay as they are.
std::string LogText(std::string_view bytes);

}  // namespace kv::gate
