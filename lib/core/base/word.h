// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace kv {

// A name that people read with spaces, as the word that programs compare: "npy set" is npy_set in
// documents.
inline std::string WithUnderscores(std::string_view text) {
  std::string word(text);
  std::replace(word.begin(), word.end(), ' ', '_');
  return word;
}

}  // namespace kv
