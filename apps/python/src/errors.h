// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "lib/api/kvtool.h"
#include "lib/core/base/error.h"

// Runs calls that end with a result, with an error, or interrupted, and the program's commands,
// which return the document that they print with --json.
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

Failure DescribeFailure(const kv::Error& error);
// Runs `f` without the GIL and raises its exception.
void WithoutGil(const std::function<void()>& f);

// Runs `work` on a thread of its own, where it may be interrupted between two pieces of its work:
// by a signal, or by `progress`, which is called with (done, total) bytes and returns False. Raises
// its exception.
void RunInterruptibly(nb::handle progress,
                      const std::function<void(kv::Embedding& embedding)>& work);

struct CommandOutcome {
  int status = 0;  // exit status of the program
  std::vector<std::string> documents, warnings;
};

// `arguments` are bytes. Raises the first failure of an input; returns status 1 (a verdict).
CommandOutcome RunCommand(const std::string& command, nb::handle arguments, nb::handle progress);

// Returns the strings of a sequence of bytes.
std::vector<std::string> Words(nb::handle sequence);

// Runs the program itself, as `kvtool` does.
int RunMain(nb::handle arguments);

}  // namespace kvtool_python
