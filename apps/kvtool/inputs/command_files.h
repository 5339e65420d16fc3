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

// The files that a command reads and writes, known before anything is read. No output may be an
// input or another output, under any name, and -f must not remove anything else.
class CommandFiles {
 public:
  // "" and "-" are not files, but standard input is read only once. A missing file is not an input
  // (yet); for DIR/STEM, all files whose names begin so are inputs.
  void Reads(const std::string& path);
  void Reads(const std::vector<std::string>& paths);
  // `flag` is the name in messages. "-" is standard output.
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
  // Lists what was read and written, with sizes in bytes: for -v. Streams have no lines.
  std::vector<std::string> Sizes() const;

 private:
  void CheckAgainstOutputs() const;

  std::vector<std::string> inputs_, stems_;  // existing paths, and paths that may be DIR/STEM
  size_t streams_ = 0;                       // how many inputs of a run are standard input
  std::vector<Output> outputs_;
  std::set<std::pair<std::string, std::string>> flagged_;  // entries of outputs_ that flags added
};

// Returns the size of a file, or of all files in a folder; 0 if it does not exist.
uint64_t BytesOf(const std::string& path);

// Returns true if an output's name ends in a slash or is that of a folder.
bool NamesFolder(const std::string& output);

// Returns a file's or folder's name without its path; '.' and '..' have the name of their folder.
std::string LastName(const std::string& path);

// Implemented by everything that reads and writes files that are known in advance.
class FileUser {
 public:
  virtual ~FileUser() = default;
  virtual void Files(CommandFiles& files) const = 0;
};

// Returns options for outputs: -f, and the folders that it may replace.
OutputRules RulesFor(bool force);
// Returns the options for output with the same contents as `source`, which may be "-".
OutputRules RulesLike(bool force, const std::string& source);
// Returns options for output with the contents of `source` in another form: only those who could
// read the source may read it.
OutputRules RulesFor(bool force, const std::string& source);
// Returns options for several sources: only those who could read all of them may read it.
OutputRules RulesFor(bool force, const std::vector<std::string>& sources);
// Returns options for a source that is read while the output is written: if it changes meanwhile,
// no output appears.
OutputRules RulesFor(bool force, const std::string& path, const Source& source);

}  // namespace kv
