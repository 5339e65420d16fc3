// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/file.h"
#include "lib/fields/fields.h"

// Parts that the documents of several commands share.
namespace kv {

inline constexpr const char* kFindingPattern = "^KV[0-9]{4}$";
inline constexpr const char* kHashPattern = "^[0-9a-f]{16}$";
inline constexpr const char* kProfileHashPattern = "^[0-9a-f]{32}$";

// A hash of 64 bits in 16 hexadecimal digits.
std::string HashDigits(uint64_t hash);

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

// How fast a command was; documents of deterministic runs have neither of these.
struct Timing {
  uint64_t elapsed_us = 0;
  double mb_per_s = 0;

  static Timing Of(uint64_t bytes, double seconds);
};
const Fields<Timing>& TimingFields();

struct RunEnvironment {
  int threads = 0;
};
const Fields<RunEnvironment>& RunEnvironmentFields();

}  // namespace kv
