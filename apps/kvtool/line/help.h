// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/line/command_line.h"

namespace kv {

const CommandEntry* FindCommand(std::string_view name);
// With the nearest known command as a hint.
Error UnknownCommand(std::string_view name);

std::string VersionLine();
// Names, versions, notices and texts of all that is linked in (scripts/cmake/Licences.cmake).
std::string_view Licences();
Value VersionDocument();  // of --version --json
std::string Overview();
// -h: summary, examples, usage, the command's own options. --help: everything.
std::string ShortHelp(const CommandEntry& entry, const CommandLine& line);
std::string LongHelp(const CommandEntry& entry, const CommandLine& line);
int ShowHelp(Console& console, std::string_view command);

// What each command takes, in the order of the overview.
struct CommandDescription {
  const CommandEntry* entry = nullptr;
  LineDescription line;
};
std::vector<CommandDescription> DescribeCommands();
// All declarations of options, with their older names, for what checks them and documents them.
nlohmann::ordered_json OptionsDocument(const std::vector<CommandDescription>& commands);

// Declares all that a command line of this command takes: the command's options, and those of
// every command.
void Declare(CommandLine& line, Command& command, GlobalOptions& global);

// "FILE", "auto|always|never": what stands for the value of an option; empty for a flag.
std::string ValueText(const OptionDescription& option);
}  // namespace kv
