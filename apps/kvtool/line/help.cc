// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/line/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/console/console.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/result_fields.h"
#include "lib/core/base/utf8.h"
#include "lib/core/kernels/targets.h"
#include "version.h"

namespace kv {
namespace {

// Texts stand beside the names of options where there is room for both.
constexpr size_t kNames = 28, kRoomForBoth = 76;

std::string NamesOf(const OptionDescription& option) {
  if (option.positional()) return option.names.front() + (option.many ? "..." : "");
  const std::string value = ValueText(option);
  // Long names are aligned whether there is a short one or not.
  const std::string indent = option.names.front().starts_with("--") ? "    " : "";
  return fmt::format("{}{}{}{}", indent, fmt::join(option.names, ", "), value.empty() ? "" : " ",
                     value);
}

void AddEntry(const std::string& names, const std::string& text, size_t width, std::string& out) {
  const std::string head = "  " + names;
  if (width < kRoomForBoth) {
    out += Wrapped(head, width, 6) + "\n" + Wrapped("        " + text, width, 0) + "\n";
    return;
  }
  const size_t at = kNames + 4;
  const bool fits = ColumnsIn(head) + 2 <= at;
  std::string entry = fits ? head : head + "\n";
  const std::string body = Wrapped(std::string(at, ' ') + text, width, 0);
  out += fits ? entry + body.substr(ColumnsIn(head)) + "\n" : entry + body + "\n";
}

std::string UsageOf(const std::string& program, const LineDescription& line) {
  std::string text =
      fmt::format("Usage: {}{} [OPTIONS]", program, line.verbs.empty() ? "" : " VERB");
  for (const OptionDescription& option : line.options) {
    if (option.positional()) {
      const std::string place = NamesOf(option);
      text += option.required ? " " + place : fmt::format(" [{}]", place);
    } else if (option.required) {
      text += fmt::format(" {} {}", option.names.back(), ValueText(option));
    }
  }
  return text;
}

// What an option does, with the words it takes, its default and its variable where the text of the
// option does not name them.
std::string FullText(const OptionDescription& option) {
  std::string text = option.text;
  const auto is_named = [&](const std::string& word) { return text.find(word) != text.npos; };
  const bool tells_words = ValueText(option).find('|') != std::string::npos ||
                           std::all_of(option.words.begin(), option.words.end(), is_named);
  if (option.closed && !tells_words) {
    text += fmt::format("; one of {}", fmt::join(option.words, ", "));
  }
  if (!option.standard.empty()) text += fmt::format(" (default: {})", option.standard);
  if (!option.environment.empty()) text += fmt::format(" (also: {})", option.environment);
  if (option.required && !option.positional()) text += " (required)";
  return text;
}

// Usage, arguments, options by their headings, and verbs, `width` columns wide. The headings in
// `left_out` are not shown.
std::string OptionsHelp(const std::string& program, const LineDescription& line, size_t width,
                        const std::vector<std::string_view>& left_out) {
  std::string out = Wrapped(UsageOf(program, line), width, 2) + "\n";
  if (!line.verbs.empty()) out += "\nVerbs:\n";
  for (const LineDescription& verb : line.verbs) AddEntry(verb.name, verb.summary, width, out);
  bool any = false;
  std::vector<std::string> groups;
  for (const OptionDescription& option : line.options) {
    if (option.positional()) {
      if (!any) out += "\nArguments:\n";
      any = true;
      AddEntry(NamesOf(option), FullText(option), width, out);
    } else if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) {
      groups.push_back(option.group);
    }
  }
  for (const std::string& group : groups) {
    if (std::find(left_out.begin(), left_out.end(), group) != left_out.end()) continue;
    out += "\n" + Wrapped(group + ":", width, 2) + "\n";
    for (const OptionDescription& option : line.options) {
      if (option.positional() || option.group != group) continue;
      AddEntry(NamesOf(option), FullText(option), width, out);
    }
  }
  return out;
}

nlohmann::ordered_json OptionJson(const OptionDescription& option) {
  return {{"names", option.names},
          {"aliases", option.aliases},
          {"value", option.value},
          {"words", option.words},
          {"closed", option.closed},
          {"text", option.text},
          {"group", option.group},
          {"default", option.standard},
          {"environment", option.environment},
          {"required", option.required},
          {"many", option.many}};
}

void AddLine(const std::string& name, const LineDescription& line, nlohmann::ordered_json& out) {
  nlohmann::ordered_json options = nlohmann::ordered_json::array();
  for (const OptionDescription& option : line.options) options.push_back(OptionJson(option));
  out.push_back({{"command", name}, {"options", std::move(options)}});
  for (const LineDescription& verb : line.verbs) {
    AddLine(fmt::format("{} {}", name, verb.name), verb, out);
  }
}

constexpr const char* kShared = "Everywhere";
constexpr const char* kReading = "Reading the snapshot";

// Lines longer than this are hard to read; a pager behind a pipe has 80 columns at least.
size_t HelpWidth() {
  const size_t columns = ColumnsOf(STDOUT_FILENO);
  return columns == kAnyWidth ? 80 : std::min<size_t>(columns, 100);
}

// Of the examples of a command, those of the verb that was asked for, unless there are none.
std::string ExamplesOf(const CommandEntry& entry, std::string_view verb) {
  const std::string_view all = entry.examples;
  if (verb.empty()) return std::string(all);
  const std::string begin = fmt::format("  kvtool {} {} ", entry.name, verb);
  std::string chosen;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\n', at), all.size() - 1) + 1;
    if (all.substr(at, end - at).starts_with(begin)) chosen += all.substr(at, end - at);
    at = end;
  }
  return chosen.empty() ? std::string(all) : chosen;
}

// What a command, or the verb that was given, takes, with examples.
std::string Help(const CommandEntry& entry, const CommandLine& line,
                 const std::vector<std::string_view>& left_out) {
  LineDescription shown = line.Describe();
  std::string program = fmt::format("kvtool {}", entry.name);
  std::string_view summary = entry.summary;
  std::string verb;
  if (const CommandLine* given = line.given_verb()) {
    LineDescription own = given->Describe();
    // A verb takes the options of every command, too.
    for (OptionDescription& option : shown.options) {
      if (option.group == kShared) own.options.push_back(std::move(option));
    }
    shown = std::move(own);
    verb = shown.name;
    summary = shown.summary;
    program += " " + verb;
  }
  const size_t width = HelpWidth();
  return fmt::format(
      "{}\n\nExamples:\n{}\n{}\n", Wrapped(fmt::format("{}: {}", program, summary), width, 0),
      Wrapped(ExamplesOf(entry, verb), width, 4), OptionsHelp(program, shown, width, left_out));
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
#ifdef KVTOOL_WITHOUT_STORE
  if (name == "store") {
    return Error(Finding::kUsage, "this kvtool is built without stores")
        .Hint("build it with KVTOOL_STORE=ON, for which it needs SQLite");
  }
#endif
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

namespace {

struct AboutProgram {};

const Fields<AboutProgram>& AboutProgramFields() {
  using Of = AboutProgram;
  static const Fields<Of> fields = {
      NoInputs<Of>(),
      {"version", "Version of the program", [](const Of&) { return KVTOOL_VERSION; }},
      {"git", "The commit that it was built from", [](const Of&) { return KVTOOL_GIT; }},
      {"simd", "The SIMD target in use", [](const Of&) { return ActiveSimdTarget(); }},
      {"json_versions", "What --json-version may be",
       [](const Of&) { return std::vector{kJsonVersion}; }}};
  return fields;
}

}  // namespace

const FieldTable& VersionFields() { return AboutProgramFields(); }
Value VersionDocument() { return AboutProgramFields().Object({}); }

std::string Overview() {
  std::string text =
      Wrapped("kvtool: what is in this KV cache, does it compress, is the restored one the same?\n",
              HelpWidth(), 0) +
      "\nUsage: kvtool COMMAND [OPTIONS]\n";
  std::string_view group;
  for (const CommandEntry& entry : Commands()) {
    if (entry.group != group) {
      group = entry.group;
      text += fmt::format("\n{}:\n", group);
    }
    text += Wrapped(fmt::format("  {:<16} {}\n", entry.name, entry.summary), HelpWidth(), 17);
  }
  return text + "\n" +
         Wrapped(
             "'kvtool COMMAND -h' shows examples and options, 'kvtool COMMAND --help' all "
             "options.\n",
             HelpWidth(), 0);
}

std::string ShortHelp(const CommandEntry& entry, const CommandLine& line) {
  // Shared options stay out of the one-screen help.
  return Help(entry, line, {kShared, kReading}) +
         Wrapped(
             "'--help' also lists the options that every command has, and those for reading "
             "snapshots.\n",
             HelpWidth(), 0);
}

std::string LongHelp(const CommandEntry& entry, const CommandLine& line) {
  return Help(entry, line, {}) +
         Wrapped(
             "Exit status: 0 done, 1 a negative verdict (mismatch, gate failed), 2 wrong usage, 3 "
             "invalid input, 4 I/O, 5 recognised but unsupported, 70 a bug, 130 interrupted.\n",
             HelpWidth(), 0);
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
  console.Product(LongHelp(*entry, line));
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

nlohmann::ordered_json OptionsDocument(const std::vector<CommandDescription>& commands) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const CommandDescription& command : commands) {
    AddLine(std::string(command.entry->name), command.line, out);
  }
  return out;
}

void Declare(CommandLine& line, Command& command, GlobalOptions& global) {
  command.Declare(line);
  global.Declare(line);
  line.RequireNumbers();
}

std::string ValueText(const OptionDescription& option) {
  if (option.value.empty()) return {};
  constexpr size_t kMost = 26;
  const std::string words = fmt::format("{}", fmt::join(option.words, "|"));
  if (option.closed && words.size() <= kMost) return words + (option.many ? ",..." : "");
  if (option.many && !option.positional()) return option.value + ",...";
  return option.value;
}

}  // namespace kv
