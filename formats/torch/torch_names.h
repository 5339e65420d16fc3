// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <string_view>

namespace kv {

// Cuts "torch." off a global's name; false if it is not of that module.
inline bool StripTorch(std::string_view& name) {
  if (!name.starts_with("torch.")) return false;
  name.remove_prefix(6);
  return true;
}

template <size_t N>
bool Among(std::string_view name, const std::string_view (&list)[N]) {
  for (const std::string_view candidate : list) {
    if (candidate == name) return true;
  }
  return false;
}

}  // namespace kv
