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

// A hash of 64 bits in 16 hexadecimal digits.
std::string HashDigits(uint64_t hash);
// XXH3 of all bytes of a source; `with_names` also of the names and sizes of its files.
uint64_t HashContent(const Source& source, bool with_names = false);

// An input whose content the document does not name.
struct SizedFile {
  std::string file;
  uint64_t bytes = 0;
};
const Fields<SizedFile>& SizedFileFields();

// An input of which the document names the content, too.
struct HashedFile {
  std::string file;
  uint64_t bytes = 0;
  std::string xxh3;

  static HashedFile Of(const Source& source);  // reads all of it
  // Returns the last result of Of for an input of this name, if there is one: the footer of a page
  // need not read a large file again.
  static std::optional<HashedFile> Known(const std::string& path);
};
const Fields<HashedFile>& HashedFileFields();

// An input of which the document says no more than its name and, of one of several, its part.
struct NamedFile {
  std::optional<std::string> role;
  std::string file;
};
const Fields<NamedFile>& NamedFileFields();

// The inputs of a command whose document has none of its own.
template <typename T>
typename Fields<T>::Field NoInputs() {
  const auto none = [](const T&) { return std::vector<NamedFile>(); };
  return {"inputs", "What was read", none, NamedFileFields()};
}

// What became of so many bytes; of none, or where none are left, nothing can be said.
struct Saving {
  uint64_t before = 0, after = 0;

  std::optional<double> ratio() const;
  std::optional<double> removed_fraction() const;
};
const Fields<Saving>& SavingFields();

// Names of the levels of compression.
Value::List LevelChoices();

// What a run had and how long it took; nothing of deterministic ones.
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
