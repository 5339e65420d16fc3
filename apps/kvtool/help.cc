// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/help.h"

#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "lib/core/base/nearest.h"
#include "lib/core/kernels/targets.h"
#include "version.h"

namespace kv {
namespace {

std::string Head(const CommandEntry& entry) {
  return fmt::format("kvtool {}: {}\n\nExamples:\n{}\n", entry.name, entry.summary, entry.examples);
}

}  // namespace

const CommandEntry* FindCommand(std::string_view name) {
  if (name == "list") name = "inspect";
  for (const CommandEntry& entry : Commands()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

Error UnknownCommand(std::string_view name) {
  std::vector<std::string> names;
  for (const CommandEntry& entry : Commands()) names.emplace_back(entry.name);
  const std::string nearest = Nearest(name, names);
  std::string message = fmt::format("unknown command '{}'", Escaped(name));
  if (!nearest.empty()) message += fmt::format("; did you mean '{}'?", nearest);
  Error error(Finding::kUsage, std::move(message));
  return error.Hint("'kvtool help' lists the commands");
}

std::string VersionLine() {
  return fmt::format("kvtool {} ({}), SIMD {}", KVTOOL_VERSION, KVTOOL_GIT, ActiveSimdTarget());
}

std::string Overview() {
  std::string text =
      "kvtool: what is in this KV cache, does it compress, is the restored one the same?\n\n"
      "Usage: kvtool COMMAND [OPTIONS]\n";
  std::string_view group;
  for (const CommandEntry& entry : Commands()) {
    if (entry.group != group) {
      group = entry.group;
      text += fmt::format("\n{}:\n", group);
    }
    text += fmt::format("  {:<16} {}\n", entry.name, entry.summary);
  }
  return text +
         "\n'kvtool COMMAND -h' shows examples and options, 'kvtool COMMAND --help' all options.\n";
}

std::string ShortHelp(const CommandEntry& entry, CommandLine& line) {
  // Shared options stay out of the one-screen help.
  line.Hide("Everywhere");
  line.Hide("Reading the snapshot");
  return Head(entry) + line.Help() +
         "'--help' also lists the options for reading snapshots and those every command has.\n";
}

std::string LongHelp(const CommandEntry& entry, const CommandLine& line) {
  return Head(entry) + line.Help() +
         "\nExit status: 0 done, 1 a negative verdict (mismatch, gate failed), 2 wrong usage,\n3 "
         "invalid input, 4 I/O, 5 recognised but unsupported, 70 a bug, 130 interrupted.\n";
}

int ShowHelp(Console& console, std::string_view name) {
  const CommandEntry* entry = FindCommand(name);
  if (entry == nullptr) {
    console.Report(UnknownCommand(name));
    return kUsageError;
  }
  const std::unique_ptr<Command> command = entry->make();
  GlobalOptions global;
  CommandLine line(fmt::format("kvtool {}", entry->name));
  Declare(line, *command, global);
  console.Data(LongHelp(*entry, line));
  return kDone;
}

std::vector<CommandDescription> DescribeCommands() {
  std::vector<CommandDescription> all;
  for (const CommandEntry& entry : Commands()) {
    const std::unique_ptr<Command> command = entry.make();
    GlobalOptions global;
    CommandLine line(fmt::format("kvtool {}", entry.name));
    Declare(line, *command, global);
    all.push_back({&entry, line.Describe()});
  }
  return all;
}

void Declare(CommandLine& line, Command& command, GlobalOptions& global) {
  command.Declare(line);
  global.Declare(line);
  line.RequireNumbers();
}

}  // namespace kv
