// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kv::capture {

struct Options {
  // of both ways to use the program
  std::string model;
  std::string backends, build;
  std::optional<bool> flash;
  int32_t threads = 0, ubatch = 512;
  // to record a run
  std::string text_file, output;
  int32_t decoded = -1;        // -1: not given
  int32_t prompt_tokens = -1;  // -1: the whole text is the prompt
  int32_t context = 0;         // 0: what the run needs
  bool probabilities = false, half = false, ignore_end = false, hash = true, force = false;
  double noise = 0;
  int32_t top = 20;
  // to confirm plans
  std::string run;
  std::vector<std::string> plans;
  std::string by;  // "seq_rm", "mask", or "": whatever the plan allows
  std::string type_k, type_v;
};

extern const char kVersion[];

// Throws Failure(kUsage). Nothing is returned where only help or the version is wanted, which is
// printed.
std::optional<Options> ParseOptions(const std::vector<std::string>& arguments);

// Records a run.
void Capture(const Options& options);

// Repeats a run with plans applied, or with a cache of other types.
void Confirm(const Options& options);

}  // namespace kv::capture
