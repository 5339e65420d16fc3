// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <filesystem>
#include <iterator>
#include <string>

#include "lib/core/base/file.h"

namespace kv::test {

inline std::string Contents(const std::filesystem::path& path) {
  return std::string(AsText(FileSource::Open(path)->bytes()));
}

inline size_t EntriesIn(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  return static_cast<size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
}

}  // namespace kv::test
