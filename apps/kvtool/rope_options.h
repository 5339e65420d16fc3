// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>

#include "apps/kvtool/command_line.h"
#include "formats/registry.h"
#include "lib/core/snapshot/rope.h"

namespace kv {

// How a model rotates its keys: the model file, and flags above it.
struct RopeOptions {
  std::string style, scaling, freqs;
  double base = 0;
  uint32_t dims = 0;

  void Declare(CommandLine& line, const char* group);
  // One flag of bases or scalings stands for all layers. Nothing where nobody says.
  std::optional<blend::ModelRope> Resolve(const OpenOptions& options) const;

 private:
  bool FromModel(const OpenOptions& options, blend::ModelRope& model) const;
};

}  // namespace kv
