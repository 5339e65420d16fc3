// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/files.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/core/base/file.h"
#include "lib/engines/mnn/logs/encoding.h"

namespace kv::mnn::logs {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxLogBytes = 64u << 20;
constexpr size_t kMaxFiles = 4096;

}  // namespace

bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

std::string ReadLog(const fs::path& path, const std::string& shown) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (!error && size > kMaxLogBytes) {
    throw Error(Finding::kLimit,
                fmt::format("a log of {} bytes; at most {} are read", size, kMaxLogBytes))
        .File(shown);
  }
  const auto source = FileSource::Open(path);
  return LogText(AsText(source->bytes()));
}

bool LogFolder::exists() const {
  std::error_code error;
  return fs::is_directory(path_, error);
}

std::vector<std::string> LogFolder::Names(bool folders, Wanted wanted) const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (folders ? !it->is_directory(ignored) : !it->is_regular_file(ignored)) continue;
    std::string name = it->path().filename().string();
    if (wanted != nullptr && !wanted(name)) continue;
    names.push_back(std::move(name));
    if (names.size() > kMaxFiles) {
      throw Error(Finding::kLimit, fmt::format("a folder of more than {} logs", kMaxFiles))
          .File(shown_);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> LogFolder::Files() const { return Names(false, nullptr); }
std::vector<std::string> LogFolder::Folders() const { return Names(true, nullptr); }
std::vector<std::string> LogFolder::FilesLike(Wanted wanted) const { return Names(false, wanted); }

bool LogFolder::Has(const std::string& name) const {
  std::error_code error;
  return fs::is_regular_file(path_ / name, error);
}

std::optional<std::string> LogFolder::Text(const std::string& name) const {
  if (!Has(name)) return std::nullopt;
  return ReadLog(path_ / name, Shown(name));
}

}  // namespace kv::mnn::logs
