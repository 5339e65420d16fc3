// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/core/base/file.h"

namespace kv::golden {

// Returns the folder of the vectors under test: $KVTOOL_GOLDEN_DIR, else testdata/golden.
std::filesystem::path Root();
// Returns true for the repository's own vectors, which cover every kind.
bool IsOwnSet();

// Memory limit of a reader that is given a damaged file.
inline constexpr uint64_t kMostMemory = uint64_t{256} << 20;

// kNone stands for a missing manifest or section.
inline const nlohmann::json kNone = nlohmann::json::array();

// Returns the path, relative to the root, of a file that InfiniLM's manifest names.
inline std::string InInfinilm(const nlohmann::json& name) {
  return "infinilm/" + name.get<std::string>();
}

// The result of one row of the table. A vector is one comparison against the real system's output.
class Run {
 public:
  void Checked(int vectors = 1) { checked_ += vectors; }
  // Returns the path of a file that the manifest names; nothing (counted as absent) if this set
  // lacks it.
  std::optional<std::filesystem::path> File(const std::string& name);
  // Returns the path of Q, K or V of a layer of a shared trace: in $KVTOOL_SHARED_DATA, in `data`
  // beside this set, in ../shared/data of the checkout, or in testdata. Nothing, counted as absent,
  // if it is in none of them.
  std::optional<std::filesystem::path> Trace(const std::string& trace, uint32_t layer, char side);
  // Returns an empty object if the set lacks the file.
  nlohmann::json Json(const std::string& name);
  Bytes Load(const std::string& name);

  int checked() const { return checked_; }
  int absent() const { return absent_; }

 private:
  int checked_ = 0, absent_ = 0;
};

// One line per area: which files below the root it covers and, where a manifest mixes several kinds
// in one array, which kind. The repository's own set has at least `least` vectors of it. `check` is
// null for manifests, and for files that nothing compares yet: `later`, which is printed, says why.
struct Row {
  std::string_view area;  // as printed
  std::string_view
      files;  // glob patterns below the root, separated by spaces; '*' also matches '/'
  std::string_view kinds;  // "MANIFEST#SECTION=KIND" patterns, separated by spaces
  void (*check)(Run&);
  int least = 0;
  std::string_view later = {};
};
std::span<const Row> Table();

bool Matches(std::string_view patterns, std::string_view name);
Bytes FromHex(std::string_view hex);
std::string ToHex(ByteSpan bytes);

}  // namespace kv::golden
