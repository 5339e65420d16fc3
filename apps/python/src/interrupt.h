// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nanobind/nanobind.h>

#include <functional>

namespace kvtool_python {

namespace nb = nanobind;

// Runs `work` without the GIL, on a thread of its own, while the caller's looks for signals and
// calls `tick` (if any, with the GIL) about twenty times a second. When either raises, `stop` is
// called, `work` is waited for, and the exception goes on. `work` must not throw.
void RunWatched(const std::function<void()>& work, const std::function<void()>& stop,
                const std::function<void()>& tick = nullptr);

// Whether signals reach Python code here: it handles them on the main thread alone.
bool OnMainThread();

}  // namespace kvtool_python
