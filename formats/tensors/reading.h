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
  // Set if the values decided: their distance from a tie, in standard errors.
  std::optional<double> margin;
  bool is_guess = false;  // nothing told, and the caller takes a guess
};

// Determines the meaning of the tensors' axes from --layout, from the file, or from the program
// that wrote it. Throws kAmbiguousFormat if several readings fit, kUnsupportedKind if none does.
Reading ChooseAxes(const TensorFile& file, const KvTensors& found, const OpenOptions& options);

// The heads that the flags or a model file give; 0 if they give none.
HeadSizes HeadsOf(const OpenOptions& options);

}  // namespace kv
