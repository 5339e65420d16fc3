// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lib/core/base/file.h"

namespace kv {
// The contents of run.json of a recorded run (kvtool.run/1). Texts are as written; they are escaped
// when shown.
struct RecordedRun {
  std::string folder;
  std::string engine, build;
  std::string model, architecture;
  uint64_t context_length = 0;  // context that the model was trained with; 0: not recorded
  uint64_t tokens = 0, prompt_tokens = 0;
  std::optional<double> nll;  // mean over the decoded tokens, in nats
  // 0 if not recorded, or if layers differ.
  uint32_t layers = 0, query_heads = 0, kv_heads = 0, head_dim = 0;

  // Rotation of the keys, in the values of the flags of these names. A base of 0 means not
  // recorded, as do scalings that no flag can express and bases that differ by layer.
  struct Rope {
    std::string style, scaling;
    double base = 0;
    uint32_t dims = 0;
  } rope;

  // Paths including the folder; "" if the run has no such file.
  std::string snapshot, prefill, trace, logits, sensitivity;
};

// Opens a run's folder. Returns nothing if `path` is not one. Throws kMissingRecord for a run that
// was not finished or whose files are gone, kUnsafeName for files outside the folder, and what
// reading run.json throws.
std::optional<RecordedRun> OpenRun(const std::string& path);
// Reads the run.json of a folder.
RecordedRun ReadRun(const FileSource& index, const std::string& folder);

// Importance of each layer of a model: the KL that noise of a known size in its attention output
// caused (kvtool.sensitivity/1).
struct Sensitivity {
  std::string model;
  double noise = 0;               // norm of the noise, relative to that of the output
  std::map<uint32_t, double> kl;  // nats, by layer

  // Returns nats per relative squared error of each layer's output.
  std::map<uint32_t, double> Weights() const;
};

// Throws kBadText, kBadVersion, kBadField, kDuplicateName, kLimit; with a path also what opening a
// file throws.
Sensitivity ReadSensitivity(const FileSource& file);
Sensitivity ReadSensitivity(const std::string& path);

}  // namespace kv
