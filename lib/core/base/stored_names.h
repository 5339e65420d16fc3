// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by file.cc

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace kv {

// Two stored names that cannot both be restored: equal ones, or a file and what lies below it.
struct NameClash {
  std::string_view above, name;
};
// Finds the first such pair, if any. `compared`, if given, is set to the bytes that were looked at,
// which grow as the names do, however deep they are.
std::optional<NameClash> FindNameClash(std::vector<std::string_view> names,
                                       uint64_t* compared = nullptr);

}  // namespace kv
