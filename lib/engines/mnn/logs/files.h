// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kv::mnn::logs {

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
  // The names of the regular files, or of the folders, directly in it, sorted. Throws kLimit.
  std::vector<std::string> Files() const;
  std::vector<std::string> Folders() const;
  // The names of the wanted files. Other files, such as dumps, do not count towards the limit.
  using Wanted = bool (*)(std::string_view name);
  std::vector<std::string> FilesLike(Wanted wanted) const;
  bool Has(const std::string& name) const;
  // The whole text of a file, or nothing if there is none. Throws kReadFailed, kLimit.
  std::optional<std::string> Text(const std::string& name) const;

 private:
  std::vector<std::string> Names(bool folders, Wanted wanted) const;

  std::filesystem::path path_;
  std::string shown_;
};

std::string ReadLog(const std::filesystem::path& path, const std::string& shown);
bool EndsWith(std::string_view text, std::string_view suffix);

}  // namespace kv::mnn::logs
