// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/line/command_line.h"
#include "formats/registry.h"
#include "lib/core/snapshot/rope.h"

namespace kv {

// How a model rotates its keys: the model file, and flags above it.
struct RopeOptions {
  std::string style, scaling, freqs;
  double base = 0;
  uint32_t dims = 0;

  void Declare(CommandLine& line, const char* group);
  // The same without --rope-style, for commands that try both.
  void DeclareUnpaired(CommandLine& line, const char* group);
  // One flag of bases or scalings stands for all layers. Nothing where nobody says. Without
  // --rope-style the pairs are those of `keys`, which engines order in their own ways (null: pairs
  // do not matter). Throws kUsage where the model's file does not tell them.
  std::optional<ModelRope> Resolve(const OpenOptions& options, const Snapshot* keys) const;
  // For commands that can do without: a model file whose rotation is not supported, or that ends
  // before it tells all of it, is nothing, with a warning that ends in `consequence`.
  std::optional<ModelRope> ResolveOrWarn(const OpenOptions& options, const Snapshot* keys,
                                         std::string_view consequence, Console& console) const;

 private:
  bool FromModel(const OpenOptions& options, ModelRope& model) const;
  std::optional<RopePairs> PairsFor(const OpenOptions& options, const Snapshot* keys) const;
};

}  // namespace kv
