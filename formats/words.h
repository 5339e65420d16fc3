// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/bytes.h"

// Functions on names and words that every reader needs.
namespace kv {

// Returns the name of a file without its folders.
inline std::string_view LastPart(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Returns the folders of a file's name; "" if it has none.
inline std::string_view FolderPart(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? std::string_view() : path.substr(0, slash);
}

template <size_t kCount>
bool Contains(const std::string_view (&list)[kCount], std::string_view word) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}

// Returns "a, b, c, d and 4 more".
inline std::string Listed(const std::vector<std::string>& names) {
  const auto shown = static_cast<std::ptrdiff_t>(std::min<size_t>(names.size(), 4));
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (names.size() > 4) text += fmt::format(" and {} more", names.size() - 4);
  return text;
}

inline std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace kv
