// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/file.h"
#include "lib/fields/fields.h"

// Parts that the documents of several commands share.
namespace kv {

inline constexpr const char* kFindingPattern = "^KV[0-9]{4}$";
inline constexpr const char* kHashPattern = "^[0-9a-f]{16}$";

// An input whose content the document does not name.
struct SizedFile {
  std::string file;
  uint64_t bytes = 0;
};
const Fields<SizedFile>& SizedFileFields();

// An input with a hash of its content.
struct HashedFile : SizedFile {
  std::string xxh3;

  static HashedFile Of(const Source& source);  // reads all of it
};
const Fields<HashedFile>& HashedFileFields();

// What the reduction of bytes to others is called; empty where either number is 0.
std::optional<double> RatioOf(uint64_t original, uint64_t stored);
std::optional<double> RemovedFraction(uint64_t original, uint64_t stored);

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
