// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/file.h"
#include "lib/fields/fields.h"

// Parts that the documents of several commands share.
namespace kv {

inline constexpr const char* kFindingPattern = "^KV[0-9]{4}$";
inline const FieldOptions kFindingNumber = {.pattern = kFindingPattern};
inline constexpr const char* kHashPattern = "^[0-9a-f]{16}$";
inline const FieldOptions kHashText = {.pattern = kHashPattern};
inline const FieldOptions kProfileHashText = {.pattern = "^[0-9a-f]{32}$"};

// Returns a hash of 64 bits in 16 hexadecimal digits.
std::string HashDigits(uint64_t hash);
// Returns the XXH3 of all bytes of a source; `with_names` also of the names and sizes of its files.
uint64_t HashContent(const Source& source, bool with_names = false);

// An input without the hash of its content.
struct SizedFile {
  std::string file;
  uint64_t bytes = 0;
};
const Fields<SizedFile>& SizedFileFields();

// An input with the hash of its content.
struct HashedFile {
  std::string file;
  uint64_t bytes = 0;
  std::string xxh3;

  static HashedFile Of(const Source& source);  // reads all of it
  // Returns the last result of Of for an input of this name, if there is one, so that the footer of
  // a page need not read a large file again.
  static std::optional<HashedFile> Known(const std::string& path);
};
const Fields<HashedFile>& HashedFileFields();

// An input with only its name and, if it is one of several, its part.
struct NamedFile {
  std::optional<std::string> role;
  std::string file;
};
const Fields<NamedFile>& NamedFileFields();

// The inputs of a command whose document has no own list of them.
template <typename T>
typename Fields<T>::Field NoInputs() {
  const auto none = [](const T&) { return std::vector<NamedFile>(); };
  return {"inputs", "What was read", none, NamedFileFields()};
}

// Saved bytes out of some number; undefined if either number is 0.
struct Saving {
  uint64_t before = 0, after = 0;

  std::optional<double> ratio() const;
  std::optional<double> removed_fraction() const;
};
const Fields<Saving>& SavingFields();

// Returns names of the levels of compression.
Value::List LevelChoices();

// Machine and duration of a run; empty for deterministic ones.
struct RunCost {
  struct Environment {
    int threads = 0;
  };
  struct Timing {
    uint64_t elapsed_us = 0;
    double mb_per_s = 0;
  };
  std::optional<Environment> environment;
  std::optional<Timing> timing;

  static RunCost Of(bool deterministic, int threads, uint64_t bytes, double seconds);
};
const Fields<RunCost>& RunCostFields();

}  // namespace kv
