// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/line/command_line.h"

namespace kv {

// Finds a command by its name or its two words; null if there is none.
const CommandEntry* FindCommand(std::string_view name);
// The command that the first words of a command line name, and how many words that takes.
struct GivenCommand {
  const CommandEntry* entry = nullptr;
  int words = 1;
};
GivenCommand TakeCommand(int count, char* const* words);
// Returns the commands of two words that begin with the name of `family`.
std::vector<const CommandEntry*> FindMembers(const CommandEntry& family);
// Returns the second word of a command of two.
std::string_view SecondWord(const CommandEntry& member);
// Returns the command that a word may mean: "kvtool replay evict --policy snapkv" for a word that
// is part of a command's name, an older name or a policy; empty if there is none.
std::string MeantCommand(std::string_view word);
Error UnknownCommand(std::string_view name);

std::string VersionLine();
// Returns names, versions, notices and texts of linked libraries (scripts/cmake/Licences.cmake).
std::string_view Licences();
Value VersionDocument();    // output of --version --json
std::string FirstScreen();  // the commands of every day
// Return the help of -h (summary, examples, usage, and as many of the first options as one screen
// holds) and of --help (everything).
std::string ShortHelp(const CommandEntry& entry, const CommandLine& line);
std::string LongHelp(const CommandEntry& entry, const CommandLine& line);
// Returns the help of `kvtool replay -h`: the commands that begin with this word.
std::string FamilyHelp(const CommandEntry& family);
// Answers `kvtool help WORDS`: "all", a shelf's topic, a command, or a verb of it. Throws kUsage.
std::string HelpOn(int count, char* const* words);

// Returns true if a command does nothing without a second word.
bool NeedsWord(const CommandEntry& entry);

// Options of each command, in the order of the overview.
struct CommandDescription {
  const CommandEntry* entry = nullptr;
  LineDescription line;
};
std::vector<CommandDescription> DescribeCommands();
// Returns all declarations of options, with older names, for checks and for documents.
nlohmann::ordered_json OptionsDocument(const std::vector<CommandDescription>& commands);

// Declares all that a command line of this command takes: the command's options, and those of
// every command.
void Declare(CommandLine& line, Command& command, GlobalOptions& global);

// Returns "FILE", "auto|always|never": placeholder for an option's value; empty for a flag.
std::string ValueText(const OptionDescription& option);
}  // namespace kv
