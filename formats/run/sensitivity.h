// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lib/core/base/file.h"

namespace kv {

// How much each layer of a model matters: the KL that noise of a known size in its attention output
// caused (kvtool.sensitivity/1).
struct Sensitivity {
  std::string model;
  double noise = 0;               // norm of the noise, relative to that of the output
  std::map<uint32_t, double> kl;  // nats, by layer

  // Nats per relative squared error of a layer's output.
  std::map<uint32_t, double> Weights() const;
};

// Throws kBadText, kBadVersion, kBadField, kDuplicateName, kLimit; with a path also what opening a
// file throws.
Sensitivity ReadSensitivity(const FileSource& file);
Sensitivity ReadSensitivity(const std::string& path);

}  // namespace kv
