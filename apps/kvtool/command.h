// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The interface of commands: options, run, the files that a command names, and its row in the table
// of commands.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/exit_status.h"
#include "apps/kvtool/inputs/command_files.h"
#include "apps/kvtool/line/options.h"

namespace kv {

// The environment of a command apart from its own options.
struct Context {
  Console& console;
  const GlobalOptions& global;
  // Runs another command, such as {"trace", "inspect"} in place of inspect, with the options that
  // were given for one of the inputs. Empty if this command is part of a larger one.
  std::function<ExitStatus(std::vector<std::string> command, const std::string& input)> run_as =
      nullptr;
};

class EachCommand;

// A command declares its options on its command line and runs after parsing. Declare must only bind
// variables, so that parse errors and run errors never mix.
class Command : public FileUser {
 public:
  virtual void Declare(CommandLine& line) = 0;
  // Replaces recorded runs among the inputs by their files.
  virtual void TakeRuns() {}
  // Lists every file that Run reads or writes because of its options, so that outputs never
  // overwrite inputs. Run itself adds the files that a configuration names before it reads the
  // configuration.
  void Files(CommandFiles& files) const override;
  virtual ExitStatus Run(Context& context) = 0;
  // Returns this command if it does the same to each of its inputs; otherwise null.
  virtual EachCommand* AsEach() { return nullptr; }
  // Returns the words of another command line with the same meaning, with `arguments` after the
  // command's name; nothing if this command runs itself.
  virtual std::vector<std::string> Instead(const std::vector<std::string>& /*arguments*/) const {
    return {};
  }

 protected:
  // The usual members. A command that does not use one leaves it empty, so that it names no file.
  std::string input_;
  SnapshotOptions snapshot_;
  PageOptions page_;
  ReportOptions report_;
};

// The headings under which the overview of help lists commands. Shelves() has a row for each.
enum class Shelf { kFirst, kReplay, kMore, kBatch, kEngines, kHelp };

struct CommandEntry {
  std::string_view name;  // name in JSON documents, results and older command lines
  Shelf shelf;
  std::string_view summary;   // one line
  std::string_view examples;  // real examples, which -h shows first
  // null for an entry that is only the first word of two-word commands
  std::unique_ptr<Command> (*make)() = nullptr;
  std::string_view words = {};  // set if the command's words differ from its name

  std::string_view shown() const { return words.empty() ? name : words; }
};

// Returns the table of commands, in the order of the overview.
std::span<const CommandEntry> Commands();

struct ShelfEntry {
  Shelf shelf;
  std::string_view topic;    // for `kvtool help TOPIC`; may be empty
  std::string_view heading;  // in the overview
};
std::span<const ShelfEntry> Shelves();

struct Verb {
  std::string_view name, summary;
  std::unique_ptr<Command> (*make)();
};

template <typename T>
std::unique_ptr<Command> MakeVerb() {
  return std::make_unique<T>();
}

// A command with verbs that are commands themselves: `kvtool store add`. If the verb is missing the
// parser reports that, unless there is a more helpful text.
class VerbCommand : public Command {
 public:
  explicit VerbCommand(std::span<const Verb> verbs, std::string_view missing = "")
      : verbs_(verbs), missing_(missing) {}

  void Declare(CommandLine& line) override;
  void Files(CommandFiles& files) const override;
  ExitStatus Run(Context& context) override;

 private:
  std::span<const Verb> verbs_;
  std::string_view missing_;
  std::vector<std::pair<CommandLine*, std::unique_ptr<Command>>> commands_;
};

}  // namespace kv
