// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"

namespace kv {

// One input of a command that takes many.
struct CorpusEntry {
  std::string path;  // as readers open it
  std::string name;  // as results call it: the same on every machine that sees the corpus
  // As in a manifest.
  std::optional<uint64_t> bytes = {};
  std::string xxh3 = {};
  std::string model = {}, format = {};
};

// Tells a search which files of a folder are inputs.
struct FolderRules {
  OpenOptions reading;
  // As EachCommand::Takes.
  std::function<bool(std::string_view format, bool is_run)> takes;
  // As EachCommand::TakesFolder; may be empty.
  std::function<bool(const Source& folder)> takes_folder = {};
  bool takes_stores = false;  // as EachCommand::TakesStores
};

// Returns inputs found below `folder`; each is named by its path from there, after `name`.
struct FolderSearch {
  std::vector<CorpusEntry> entries;
  std::vector<std::string> left_out;  // files that are nothing for the command
};
FolderSearch SearchFolder(const FolderRules& rules, const std::string& folder,
                          const std::string& name);

// A folder that was given without -r.
struct GivenFolder {
  bool is_one = true;  // one input, as far as anything reads it
  // Returns the folder's inputs if it is not one itself, otherwise those that -r would take.
  FolderSearch found;
};
// A folder that a reader opens, or that it recognises and refuses, is one input. Any other folder
// is searched as for -r, but no link in it is followed, and the search is bounded. Throws kLimit
// for a folder of more files, kUnknownFormat for a store of states.
GivenFolder SearchGivenFolder(const FolderRules& rules, const std::string& folder,
                              const std::string& name);

}  // namespace kv
