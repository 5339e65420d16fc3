// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The options of both ways to use the program, and their parsing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kv::capture {

struct Options {
  // Options of both ways to use the program:
  std::string model;
  std::string backends, build;
  std::optional<bool> flash;
  int32_t threads = 0, ubatch = 512;
  // Options for recording a run:
  std::string text_file, output;
  int32_t decoded = -1;        // -1: not given
  int32_t prompt_tokens = -1;  // -1: the whole text is the prompt
  int32_t context = 0;         // 0: as long as the run needs
  bool probabilities = false, half = false, ignore_end = false, hash = true, force = false;
  double noise = 0;
  int32_t top = 20;
  // Options for confirming plans:
  std::string run;
  std::vector<std::string> plans;
  std::string by;  // "seq_rm", "mask", or "": either of them, as the plan allows
  std::string type_k, type_v;
};

extern const char kVersion[];

// Parses the command line. Throws Failure(kUsage). Returns nothing after printing help or the
// version.
std::optional<Options> ParseOptions(const std::vector<std::string>& arguments);

// Records a run.
void Capture(const Options& options);

// Repeats a run with plans applied, or with a cache of other types.
void Confirm(const Options& options);

}  // namespace kv::capture
