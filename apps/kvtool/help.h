// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "apps/kvtool/command.h"

namespace kv {

const CommandEntry* FindCommand(std::string_view name);
// With the nearest known command as a hint.
Error UnknownCommand(std::string_view name);

std::string VersionLine();
std::string Overview();
// -h: summary, examples, usage, the command's own options. --help: everything.
std::string ShortHelp(const CommandEntry& entry, CLI::App& app);
std::string LongHelp(const CommandEntry& entry, CLI::App& app);
int ShowHelp(Console& console, std::string_view command);

// Declares all that a command line of this command takes: -h, --help and --config with CLI11's
// defaults for this program, the command's options, and those of every command.
void PrepareApp(CLI::App& app, Command& command, GlobalOptions& global);
// A usage error in one line, with a suggestion where a flag looks mistyped.
Error ExplainParseError(const CLI::ParseError& error, CLI::App& app, int argc, char** argv);

}  // namespace kv
