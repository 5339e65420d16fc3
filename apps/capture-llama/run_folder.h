// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/capture-llama/plan.h"

namespace kv::capture {

// The folder of a run while it is written: it has another name beside the wanted one, which it gets
// when run.json, the last of its files, is there. Whoever finds the folder finds a whole run.
class RunFolder {
 public:
  // Throws Failure(kIo) if the wanted folder exists, unless it is empty, or `force` and a run that
  // holds nothing but what this program writes. RequireFree does so before anything else is done.
  RunFolder(const std::string& path, bool force);
  static void RequireFree(const std::string& path, bool force);
  ~RunFolder();  // without Commit nothing remains
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  std::string At(const std::string& name) const { return (partial_ / name).string(); }
  void Commit(const std::string& run_json);

 private:
  std::filesystem::path path_, partial_;
  bool force_;
};

// The part of a recorded run that a replay repeats.
struct RecordedRun {
  std::string model_file;  // "" if the run does not say
  std::string trace;       // folder
  int32_t prompt = 0;
  Geometry geometry;
  std::vector<int32_t> tokens;  // more than those of the prompt
};

// Reads a folder with run.json (kvtool.run/1). Throws Failure.
RecordedRun ReadRun(const std::string& folder);

}  // namespace kv::capture
