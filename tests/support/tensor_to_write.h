// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <utility>

#include "formats/tensors/kvtool_arrays.h"

namespace kv::test {

// A tensor in memory that a container writer can take.
inline TensorToWrite ToWrite(std::string name, const TensorView& view) {
  return {std::move(name), view.dtype, view.shape,
          [view](Sink& sink) { sink.Write(CopyContiguous(view)); }};
}

}  // namespace kv::test
