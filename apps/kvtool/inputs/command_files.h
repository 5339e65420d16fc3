// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/core/base/output.h"

namespace kv {

// The files that a command reads and writes, known before anything is read: so that no output is an
// input, or another output, by whatever name, and nothing is lost that -f was not meant for.
class CommandFiles {
 public:
  // "" and "-" are no files, but standard input is read once. What does not exist is not an input
  // (yet); of DIR/STEM all files whose names begin so are.
  void Reads(const std::string& path);
  void Reads(const std::vector<std::string>& paths);
  // `flag` is how a message calls it. "-" is standard output.
  void Writes(const std::string& path, std::string_view flag);
  struct Output {
    std::string path, flag;
    // Returns true if several inputs write it together, as one document or table.
    bool HoldsAllInputs() const { return flag == "--json-out" || flag == "--csv"; }
  };
  void Writes(const std::vector<Output>& outputs) {
    for (const Output& output : outputs) Writes(output.path, output.flag);
  }
  // Adds the files of one of `inputs` runs. An output that holds all inputs counts once. Throws
  // kUsage if two runs would write the same file.
  void Add(const CommandFiles& one, size_t inputs, bool has_output_dir);
  std::vector<std::string> inputs() const;
  const std::vector<Output>& outputs() const { return outputs_; }
  // Throws kUsage.
  void Check() const;
  // What was read and written, to the byte, a line each: for -v. Streams have no lines.
  std::vector<std::string> Sizes() const;

 private:
  void CheckAgainstOutputs() const;

  std::vector<std::string> inputs_, stems_;  // what is there, and what may be DIR/STEM
  size_t streams_ = 0;                       // how many inputs of a run are standard input
  std::vector<Output> outputs_;
  std::set<std::pair<std::string, std::string>> flagged_;  // of outputs_ that were added
};

// Size of a file, or of all files in a folder; 0 for what is not there.
uint64_t BytesOf(const std::string& path);

// Returns true if an output's name ends in a slash or is that of a folder.
bool NamesFolder(const std::string& output);

// The name of a file or folder alone; '.' and '..' are called as the folder that they are.
std::string LastName(const std::string& path);

// What reads and writes files that are known before it runs.
class FileUser {
 public:
  virtual ~FileUser() = default;
  virtual void Files(CommandFiles& files) const = 0;
};

// How outputs are placed: -f, and which folders it may replace.
OutputRules RulesFor(bool force);
// The same for what holds the same contents as `source`, which may be "-".
OutputRules RulesLike(bool force, const std::string& source);
// The same for what holds the contents of `source` in another form: readable by nobody who could
// not read that.
OutputRules RulesFor(bool force, const std::string& source);
// Of several sources: readable by nobody who could not read all of them.
OutputRules RulesFor(bool force, const std::vector<std::string>& sources);
// Of a source that is read while the output is written: if it changes meanwhile, nothing appears.
OutputRules RulesFor(bool force, const std::string& path, const Source& source);

}  // namespace kv
