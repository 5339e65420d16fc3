// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "apps/kvtool/each_command.h"

namespace kv {

// The inputs that a command line means, in its order; what is in a folder sorted by name. What a
// folder holds that is nothing for the command is left out and counted. Names that mean nothing
// stay, so that the run says what is wrong with them. Throws kUsage where nothing is left.
std::vector<CorpusEntry> CorpusEntries(const EachCommand& command, Console& console);

// How results call a path: without "." and "..", and where it is absolute, without its folders.
std::string CorpusName(const std::string& path);

// What is found below `folder`, each called by its path from there, behind `name`.
struct FolderSearch {
  std::vector<CorpusEntry> entries;
  std::vector<std::string> left_out;  // files that are nothing for the command
};
FolderSearch SearchFolder(const EachCommand& command, const std::string& folder);

}  // namespace kv
