// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/inputs/each_command.h"

namespace kv {

void InputOptions::Declare(CommandLine& line, const std::string& place, const std::string& text,
                           const std::string& keep_going_text) {
  line.Add(place, given, text).RequiredAlone();
  DeclareRest(line, keep_going_text);
}

void InputOptions::DeclareRest(CommandLine& line, const std::string& keep_going_text) {
  const char* group = "Many inputs";
  line.AddFlag("-r,--recursive", recursive,
               "Search folders: each snapshot, recorded run and dump below them is one input")
      .Group(group);
  line.Add("--files-from", files_from, "Also the inputs that a file ('-': stdin) lists, one a line")
      .ValueName("FILE")
      .Group(group);
  line.AddFlag("-0,--null", null, "In that list NULs stand between names, as of 'find -print0'")
      .Group(group);
  line.AddFlag("--fetch-listed", fetch_listed, "Fetch URLs that the list names, too").Group(group);
  line.Add("--corpus", corpus, "Also the inputs of a manifest, which 'kvtool corpus make' wrote")
      .ValueName("FILE")
      .Group(group);
  line.Add("--corpus-dir", corpus_dir,
           "Folder of that corpus (default: as the manifest says, beside it)")
      .ValueName("FOLDER")
      .Group(group);
  line.Add(
          "--results", results,
          "Append a JSON line for each input to a file; what has one there is not done again; with "
          "-f begin anew")
      .ValueName("FILE")
      .Group(group);
  line.Add("--shard", shard,
           "Run over part INDEX/COUNT of the inputs, from 0/COUNT on; auto: INDEX from "
           "SLURM_ARRAY_TASK_ID or JOB_COMPLETION_INDEX, COUNT from KVTOOL_SHARDS")
      .Group(group);
  line.Add("--balance", balance,
           "Shards of about as many inputs (hash, which no new input moves) or bytes (hash)")
      .OneOf({"hash", "bytes"})
      .Group(group);
  line.Add("--jobs", jobs,
           "Inputs at once, which share the threads; 0: one after another, or with --keep-going "
           "as many as there are threads")
      .Between(0, 1024)
      .Group(group);
  line.AddFlag(
          "--keep-going", keep_going,
          keep_going_text.empty() ? "Go on with the next input after an error" : keep_going_text)
      .Group(group);
}

void EachCommand::Take(const CorpusEntry& entry) {
  input_ = entry.path;
  name_ = entry.name;
  joined_ = {entry.path};
}

void EachCommand::TakeAll(const std::vector<CorpusEntry>& entries) {
  Take(entries.front());
  joined_.clear();
  for (const CorpusEntry& entry : entries) joined_.push_back(entry.path);
}

bool EachCommand::Takes(std::string_view format, bool is_run) const {
  return is_run || !format.empty();
}

void EachCommand::DeclareInputs(CommandLine& line, const std::string& place,
                                const std::string& text, const std::string& keep_going_text) {
  place_ = place;
  inputs_.Declare(line, place, text, keep_going_text);
}

void InputOptions::Files(CommandFiles& files) const {
  if (!files_from.empty()) files.Reads(files_from);
  if (!corpus.empty()) files.Reads(corpus);
}

}  // namespace kv
