// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "apps/python/src/errors.h"
#include "lib/core/base/error.h"

// The program's commands, run for Python: their documents are what they print with --json.
namespace kvtool_python {

namespace nb = nanobind;

Failure FailureOf(const kv::Error& error);
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
