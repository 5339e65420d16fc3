// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
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
  // Returns the names of the regular files, or of the folders, directly in it, sorted. Excluded
  // files, such as dumps, do not count towards the limit. Throws kLimit.
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

// Every document of the gate keeps the order of its keys.
using Json = nlohmann::ordered_json;

// Parses a document that another program wrote. Python writes NaN, Infinity and numbers beyond the
// range of a double into JSON, and C nan and inf; these become the texts "NaN", "Infinity" and
// "-Infinity". Throws kBadText with the place of the mistake, and kLimit if the document nests too
// deep or an object has too many keys.
Json ParseJson(std::string_view text, std::string_view file);

// Returns the value under a key; null if `object` is not an object, lacks the key, or has null.
const Json* Find(const Json& object, std::string_view key);
// Returns the number or the flag under a key; nothing if the value is of another type.
std::optional<double> NumberIn(const Json& object, std::string_view key);
std::optional<bool> FlagIn(const Json& object, std::string_view key);
// Returns the text under a key; `otherwise` if the value is not a text.
std::string TextAt(const Json& object, std::string_view key, std::string otherwise = {});
// Returns true if the value under a key is true in Python's sense.
bool TruthAt(const Json& object, std::string_view key);

}  // namespace kv::gate
