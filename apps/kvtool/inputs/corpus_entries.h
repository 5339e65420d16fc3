// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by corpus_entries.cc, folder_search.cc

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/inputs/command_files.h"
#include "apps/kvtool/line/command_line.h"
#include "formats/format.h"
#include "lib/core/base/descriptor.h"
#include "lib/corpus/corpus.h"

namespace kv {

// One input of a command that takes many.
struct CorpusEntry {
  std::string path;   // path for readers
  std::string name;   // name in results: the same on every machine with the corpus
  size_t parent = 0;  // length of the part of `name` that is left out below the folder of -o
  // The fields below are known if a manifest names the input.
  std::optional<uint64_t> bytes = {};
  std::string xxh3 = {};
  std::string model = {}, format = {};
};

// Tells a search which files of a folder are inputs.
struct FolderRules {
  OpenOptions reading;
  // Has the meaning of EachCommand::Takes.
  std::function<bool(std::string_view format, bool is_run)> takes;
  // Has the meaning of EachCommand::TakesFolder; may be empty.
  std::function<bool(const Source& folder)> takes_folder = {};
  bool takes_stores = false;  // as EachCommand::TakesStores
};

// Returns inputs found below `folder`; each is named by its path from there, after `name`.
struct FolderSearch {
  std::vector<CorpusEntry> entries;
  std::vector<std::string> left_out;  // files that the command cannot use
};
FolderSearch SearchFolder(const FolderRules& rules, const std::string& folder,
                          const std::string& name);

// A folder that was given without -r.
struct GivenFolder {
  bool is_one = true;  // true: one input, as far as any reader can open it
  // Returns the folder's inputs if it is not one itself, otherwise those that -r would take.
  FolderSearch found;
};
// A folder that a reader opens, or recognises and refuses, is one input. Any other folder is
// searched as for -r, except that no link in it is followed and the search is bounded. Throws
// kLimit for a folder with more files, kUnknownFormat for a store of states.
GivenFolder SearchGivenFolder(const FolderRules& rules, const std::string& folder,
                              const std::string& name);

// The inputs of a command and how to process them: common to all commands that take many.
struct InputOptions {
  std::vector<std::string> given;  // files, folders, patterns, "-"
  std::string files_from, corpus, corpus_dir;
  std::string results, shard, balance = "hash";
  bool recursive = false, null = false, fetch_listed = false, keep_going = false;
  int jobs = 0;

  // `place` and `text` describe the inputs in help. A command with a different --keep-going
  // supplies its own text for it.
  void Declare(CommandLine& line, const std::string& place, const std::string& text,
               const std::string& keep_going_text = "");
  // Declares all options but the inputs themselves.
  void DeclareRest(CommandLine& line, const std::string& keep_going_text = "");
  // Returns true if more than plain names are given.
  bool searches() const { return recursive || !files_from.empty() || is_corpus(); }
  // Returns true if the inputs form a corpus: each has its own result, however few they are.
  bool is_corpus() const { return !corpus.empty() || !results.empty() || !shard.empty(); }
  void Files(CommandFiles& files) const;
};

// Returns the paths that a pattern matches, sorted; the pattern itself if there are none.
std::vector<std::string> MatchingPaths(const std::string& given);

// Returns the name of a path in results: without "." and "..", and without folders if it is
// absolute.
std::string CorpusName(const std::string& path);

// A manifest, its size, and the folder where its inputs are.
struct OpenedManifest {
  corpus::Manifest manifest;
  uint64_t bytes = 0;
  std::string folder;
};
// `given` is --corpus-dir. Throws kUnsafeName if it is empty and the manifest names a folder
// outside its own.
OpenedManifest OpenManifest(const std::string& path, const std::string& given);

// The inputs of a command line, in order.
struct CommandInputs {
  std::vector<CorpusEntry> entries;
  // The folders, given without -r, that were replaced by the caches in them.
  std::vector<std::string> searched;
};
// Inputs of a folder are sorted by name; files in it that the command cannot use are skipped and
// counted. Missing names stay, so that the run reports them. Throws kUsage if nothing is left;
// `place` is what the message calls the inputs.
CommandInputs FindInputs(const InputOptions& inputs, const FolderRules& rules,
                         const std::string& place, Console& console);

// Returns the XXH3 of an input's content as 16 hex digits: for a file of its bytes, for a folder of
// the names, sizes and bytes of all files below it. Throws what Source::Open throws does.
std::string ContentHash(const std::string& path);

// A file of JSON lines, one for each input of a run. Each line is appended in one write, so that a
// kill leaves at most one torn line at the end, which the next run removes. Inputs with a line are
// not repeated. Only one run at a time has the file.
class ResultsFile {
 public:
  // With `anew` existing contents are dropped. Throws kUsage for the results of another run, for
  // files that are not results, and for special files; kIo errors.
  ResultsFile(const std::string& path, const corpus::ResultsHead& head, bool anew);

  const corpus::ResultsHead& head() const { return head_; }
  // Returns true if an earlier run with the same settings began the file.
  bool continues() const { return continues_; }
  // Returns the exit status of an existing result, unless the input should be tried again.
  std::optional<int> FindStatus(const std::string& key) const;
  // May be called from any thread.
  void Append(const nlohmann::ordered_json& line);
  // Syncs the file to the disk. Throws kWriteFailed.
  void Finish();

 private:
  void Load();

  const std::string path_;
  const corpus::ResultsHead head_;
  Descriptor descriptor_;
  std::map<std::string, int> known_;  // exit status by key
  std::mutex mutex_;
  bool continues_ = false;
  bool is_torn_ = false;  // true: the last line is incomplete, so nothing may follow it
};

}  // namespace kv
