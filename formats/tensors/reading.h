// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>

#include "formats/tensors/axes.h"
#include "formats/tensors/tensor_names.h"

namespace kv {

struct Reading {
  Axes axes;
  std::string note;  // where the file itself does not decide
  // Set where the values did: how far from a tie they are, in standard errors.
  std::optional<double> margin;
  bool is_guess = false;  // nothing told, and the caller takes a guess
};

// What the axes of the tensors found mean: by --layout, by what the file says, by who wrote it.
// Throws kAmbiguousFormat where several readings fit, kUnsupportedKind where none does.
Reading ChooseAxes(const TensorFile& file, const KvTensors& found, const OpenOptions& options);

// What the flags or a model file say of the heads; 0 where they say nothing.
HeadSizes HeadsOf(const OpenOptions& options);

}  // namespace kv
