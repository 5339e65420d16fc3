// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "lib/api/kvtool.h"

// How calls end: with a result, with an error, or interrupted.
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

// Runs `work` without the GIL, on a thread of its own, while the caller's looks for signals and
// calls `tick` (if any, with the GIL) about twenty times a second. When either raises, `stop` is
// called, `work` is waited for, and the exception goes on. `work` must not throw.
void RunWatched(const std::function<void()>& work, const std::function<void()>& stop,
                const std::function<void()>& tick = nullptr);

}  // namespace kvtool_python
