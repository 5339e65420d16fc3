// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
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

// What every command gets besides its own options.
struct Context {
  Console& console;
  const GlobalOptions& global;
  // Runs another command, {"trace", "inspect"} in place of inspect, with the options that were
  // given for one of the inputs. Empty where this one is a part of something larger.
  std::function<ExitStatus(std::vector<std::string> command, const std::string& input)> run_as =
      nullptr;
};

class EachCommand;

// A command declares its options on its command line and runs after parsing. Declare must only bind
// variables: parse errors and run errors never mix.
class Command : public FileUser {
 public:
  virtual void Declare(CommandLine& line) = 0;
  // Replaces recorded runs among the inputs by the files that they are made of.
  virtual void TakeRuns() {}
  // Every file that Run reads or writes by its options, so that none is lost. What a configuration
  // names in turn is added by Run, before it reads that.
  void Files(CommandFiles& files) const override;
  virtual ExitStatus Run(Context& context) = 0;
  // The same, if it does the same to each of its inputs.
  virtual EachCommand* AsEach() { return nullptr; }
  // The words of another command line that means the same as this one, `arguments` behind the
  // command's name; nothing if this one runs itself.
  virtual std::vector<std::string> Instead(const std::vector<std::string>& /*arguments*/) const {
    return {};
  }

 protected:
  // Most commands have these. A command without one leaves it empty, and then it names no file.
  std::string input_;
  SnapshotOptions snapshot_;
  PageOptions page_;
  ReportOptions report_;
};

// A shelf of the overview, on which help lists a command. Shelves() has a row for each.
enum class Shelf { kFirst, kReplay, kMore, kBatch, kEngines, kHelp };

struct CommandEntry {
  std::string_view name;  // as JSON documents, results and older command lines have it
  Shelf shelf;
  std::string_view summary;                      // one line
  std::string_view examples;                     // real ones, shown first by -h
  std::unique_ptr<Command> (*make)() = nullptr;  // null: the first word of commands of two
  std::string_view words = {};                   // as it is written, where that is not the name

  std::string_view shown() const { return words.empty() ? name : words; }
};

// The table of commands, in the order of the overview.
std::span<const CommandEntry> Commands();

struct ShelfEntry {
  Shelf shelf;
  std::string_view topic;    // of `kvtool help TOPIC`; empty: none
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

// A command of which each verb is a command of its own: `kvtool store add`. Where no verb is given
// the parser says so, unless there is a text that says it better.
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
