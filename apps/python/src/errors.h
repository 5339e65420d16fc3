// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "lib/api/kvtool.h"

namespace kvtool_python {

namespace nb = nanobind;

// What kvtool.Error is made of.
struct Failure {
  kvt_status status = 0;
  uint64_t offset = UINT64_MAX;  // none
  std::string message, hint, file;
  std::string text;  // the whole line for a reader; empty: made of the others
};

// Raises kvtool.Error, or kvtool.IoError where the file system is at fault. With the GIL.
[[noreturn]] void Raise(const Failure& failure);

// Raises what the last call on `ctx` found, if it failed.
void RaiseIfFailed(kvt_status status, const kvt_ctx* ctx);

}  // namespace kvtool_python
