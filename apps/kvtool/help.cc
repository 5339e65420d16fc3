// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/numbers.h"
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
         "\n'kvtool COMMAND -h' shows examples and options, 'kvtool COMMAND --help' everything.\n";
}

std::string ShortHelp(const CommandEntry& entry, CLI::App& app) {
  // Shared options stay out of the one-screen help.
  for (CLI::Option* option : app.get_options()) {
    if (option->get_group() == "Everywhere" || option->get_group() == "Reading the snapshot")
      option->group("");
  }
  return Head(entry) + app.help() +
         "'--help' also lists the options for reading snapshots and those every command has.\n";
}

std::string LongHelp(const CommandEntry& entry, CLI::App& app) {
  return Head(entry) + app.help() +
         "\nExit status: 0 done, 1 a verdict (mismatch, gate failed), 2 usage, 3 invalid input, 4 "
         "I/O,\n"
         "5 recognised but unsupported, 70 a bug, 130 interrupted.\n";
}

int ShowHelp(Console& console, std::string_view name) {
  const CommandEntry* entry = FindCommand(name);
  if (entry == nullptr) {
    console.Report(UnknownCommand(name));
    return kUsageError;
  }
  const std::unique_ptr<Command> command = entry->make();
  GlobalOptions global;
  CLI::App app("", fmt::format("kvtool {}", entry->name));
  PrepareApp(app, *command, global);
  console.Data(LongHelp(*entry, app));
  return kDone;
}

void PrepareApp(CLI::App& app, Command& command, GlobalOptions& global) {
  app.set_help_flag("-h", "Short help with examples");
  app.set_help_all_flag("--help", "All options");
  // CLI11 looks at the variable only after it has read the file.
  const char* config = std::getenv("KVTOOL_CONFIG");
  app.set_config("--config", config == nullptr ? "" : config,
                 "Read option defaults from a file (TOML or INI)")
      ->envname("KVTOOL_CONFIG");
  app.allow_config_extras(CLI::config_extras_mode::error);  // a misspelt key is no default
  app.option_defaults()->take_last();
  command.Declare(app);
  global.Declare(app);
  RequireNumbers(app);
}

namespace {

// "INI was not able to parse levle": what else it may have meant.
std::string NearestKey(const CLI::App& app, std::string_view key) {
  std::vector<std::string> keys;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) keys.push_back(name);
  }
  return Nearest(key, keys);
}

}  // namespace

Error ExplainParseError(const CLI::ParseError& error, CLI::App& app, int argc, char** argv) {
  Error usage(Finding::kUsage, error.what());
  if (dynamic_cast<const CLI::ConfigError*>(&error) != nullptr) {
    const std::string text = error.what();
    std::string key = text.substr(text.find_last_of(' ') + 1);
    if (key.ends_with(".++")) key = key.substr(0, key.size() - 3);  // a section's opening
    const std::string nearest = NearestKey(app, key);
    return Error(Finding::kUsage,
                 fmt::format("--config: unknown key or section '{}'{}", Escaped(key, 80),
                             nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)))
        .Hint(fmt::format("keys are the long names of options; '{} --help' lists them",
                          app.get_name()));
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    std::vector<std::string> flags;
    for (const CLI::App* level = &app; level != nullptr;
         level = level->get_subcommands().empty() ? nullptr : level->get_subcommands().front()) {
      for (const CLI::Option* option : level->get_options()) {
        for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
      }
      for (const CLI::App* child : level->get_subcommands(nullptr))
        flags.push_back(child->get_name());
    }
    for (int i = 2; i < argc; ++i) {
      const std::string word = argv[i];
      const std::string flag = word.substr(0, word.find('='));
      if (std::find(flags.begin(), flags.end(), flag) != flags.end()) continue;
      const std::string nearest = Nearest(flag, flags);
      if (!nearest.empty() && (flag[0] == '-') == (nearest[0] == '-')) {
        return Error(Finding::kUsage,
                     fmt::format("unknown '{}'; did you mean '{}'?", Escaped(flag), nearest))
            .Hint(fmt::format("'{} -h' shows how it is used", app.get_name()));
      }
    }
  }
  return usage.Hint(fmt::format("'{} -h' shows how it is used", app.get_name()));
}

}  // namespace kv
