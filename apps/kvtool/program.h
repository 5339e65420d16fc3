// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/console/console.h"

namespace kv {

// The whole program: parses the command line, runs one command, reports failures, and returns the
// exit status. Installs the process's handlers of signals and of std::terminate.
int RunProgram(int argc, char** argv);

// Runs one command inside another program: `arguments` are those after its name. Documents (--json
// is set by the caller), warnings, failures of single inputs and progress go to `embedding`,
// nothing to any stream; the process's handlers are not changed. Throws what the command throws.
ExitStatus RunEmbedded(std::string_view name, Command& command,
                       const std::vector<std::string>& arguments, Embedding& embedding);

}  // namespace kv
