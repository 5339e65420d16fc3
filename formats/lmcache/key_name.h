// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/core/base/dtype.h"

namespace kv::lmcache {

// What LMCache's keys say, as files and slots are named by them. '@' stands between their words.
//   in-process:    MODEL@WORLD@WORKER@HASH@DTYPE[@LAYER][@TAG%VALUE...]
//   multiprocess:  MODEL@0xRANK@GROUP@HASH[@SALT]
struct KeyName {
  std::string model;
  std::string hash;  // hex digits
  std::optional<DType> dtype;
  std::optional<uint32_t> layer;
  bool multiprocess = false;
  std::vector<std::pair<std::string, std::string>> facts;  // for `inspect`
};

// Returns nothing if the text is not a key.
std::optional<KeyName> ParseKeyName(std::string_view key);
// The same for a file's name, ignoring folder and ending.
std::optional<KeyName> ParseKeyOfFile(std::string_view file);

}  // namespace kv::lmcache
