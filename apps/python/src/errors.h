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

// The parts of kvtool.Error.
struct Failure {
  kvt_status status = 0;
  uint64_t offset = UINT64_MAX;  // none
  std::string message, hint, file;
  std::string text;  // the complete message; if empty, it is composed of the other parts
};

// Raises kvtool.Error, or kvtool.IoError if the file system is at fault. With the GIL.
[[noreturn]] void Raise(const Failure& failure);

// Raises the error of the last call on `ctx`, if it failed.
void RaiseIfFailed(kvt_status status, const kvt_ctx* ctx);

// Runs `work` without the GIL, on a thread of its own. Meanwhile the calling thread checks for
// signals and calls `tick` (if any, with the GIL) about twenty times a second. If either raises,
// `stop` is called, `work` is waited for, and the exception is raised again. `work` must not throw.
void RunWatched(const std::function<void()>& work, const std::function<void()>& stop,
                const std::function<void()>& tick = nullptr);

}  // namespace kvtool_python
