// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtool/inputs/each_command.h"
#include "lib/corpus/corpus.h"

namespace kv {

// The inputs that a command line means, in its order; what is in a folder sorted by name. What a
// folder holds that is nothing for the command is left out and counted. Names that mean nothing
// stay, so that the run says what is wrong with them. Throws kUsage where nothing is left.
std::vector<CorpusEntry> CorpusEntries(const EachCommand& command, Console& console);

// The paths that a pattern matches, sorted; the pattern itself if there is none.
std::vector<std::string> MatchingPaths(const std::string& given);

// How results call a path: without "." and "..", and where it is absolute, without its folders.
std::string CorpusName(const std::string& path);

// Where the inputs of a manifest are; `given` is --corpus-dir. Throws kUnsafeName if that is empty
// and the manifest says a folder that is not below its own.
std::string CorpusFolder(const std::string& manifest_path, const std::string& given,
                         const corpus::Manifest& manifest);

// What to look for in a folder.
struct FolderRules {
  OpenOptions reading;
  // As EachCommand::Takes.
  std::function<bool(std::string_view format, bool is_run)> takes;
};

// What is found below `folder`, each called by its path from there, behind `name`.
struct FolderSearch {
  std::vector<CorpusEntry> entries;
  std::vector<std::string> left_out;  // files that are nothing for the command
};
FolderSearch SearchFolder(const FolderRules& rules, const std::string& folder,
                          const std::string& name);

// XXH3 of an input's content, 16 hex digits: of a file that of its bytes, of a folder that of the
// names, sizes and bytes of all files below it. Throws as Source::Open does.
std::string ContentHash(const std::string& path);

}  // namespace kv
