// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/capture-llama/plan.h"

namespace kv::capture {

// The folder of a run while it is written. It has a temporary name beside the final one, and is
// renamed when run.json, its last file, is complete. So a folder with the final name always holds a
// whole run.
class RunFolder {
 public:
  // Throws Failure(kIo) if the folder exists, unless it is empty, or `force` is set and it is a run
  // with nothing but files of this program. RequireFree checks the same before any work.
  RunFolder(const std::string& path, bool force);
  static void RequireFree(const std::string& path, bool force);
  ~RunFolder();  // deletes everything unless Commit was called
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  std::string At(const std::string& name) const { return (partial_ / name).string(); }
  void Commit(const std::string& run_json);

 private:
  std::filesystem::path path_, partial_;
  bool force_;
};

// The part of a recorded run that is needed to repeat it.
struct RecordedRun {
  std::string model_file;  // "" if the run does not record its model
  std::string trace;       // folder
  int32_t prompt = 0;
  Geometry geometry;
  std::vector<int32_t> tokens;  // of the prompt and after it
};

// Reads a folder with run.json (kvtool.run/1). Throws Failure.
RecordedRun ReadRun(const std::string& folder);

}  // namespace kv::capture
