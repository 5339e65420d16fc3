// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/line/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/console/console.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/document_names.h"
#include "lib/core/base/utf8.h"
#include "lib/core/kernels/targets.h"
#include "lib/study/eviction/policy.h"
#include "version.h"

namespace kv {
namespace {

// Heading of the options that are declared below none.
constexpr const char* kHeadless = "Options";
constexpr size_t kFirstExamples = 3;

// Texts are placed beside the names of options if there is room for both.
constexpr size_t kNames = 28, kRoomForBoth = 76;

std::string JoinNames(const OptionDescription& option) {
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

std::string WriteUsage(const std::string& program, const LineDescription& line) {
  std::string text =
      fmt::format("Usage: {}{} [OPTIONS]", program, line.verbs.empty() ? "" : " VERB");
  for (const OptionDescription& option : line.options) {
    if (option.positional()) {
      const std::string place = JoinNames(option);
      text += option.required ? " " + place : fmt::format(" [{}]", place);
    } else if (option.required) {
      text += fmt::format(" {} {}", option.names.back(), ValueText(option));
    }
  }
  return text;
}

// Returns the text of an option, with its permitted words, its default and its variable unless the
// text names them.
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

void AddOptions(const std::string& group, const LineDescription& line, size_t width,
                std::string& out) {
  for (const OptionDescription& option : line.options) {
    if (option.positional() || option.group != group) continue;
    AddEntry(JoinNames(option), FullText(option), width, out);
  }
}

// Returns usage, arguments, options by their headings, and verbs, `width` columns wide.
std::string OptionsHelp(const std::string& program, const LineDescription& line, size_t width) {
  std::string out = Wrapped(WriteUsage(program, line), width, 2) + "\n";
  if (!line.verbs.empty()) out += "\nVerbs:\n";
  for (const LineDescription& verb : line.verbs) AddEntry(verb.name, verb.summary, width, out);
  bool any = false;
  std::vector<std::string> groups;
  for (const OptionDescription& option : line.options) {
    if (option.positional()) {
      if (!any) out += "\nArguments:\n";
      any = true;
      AddEntry(JoinNames(option), FullText(option), width, out);
    } else if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) {
      groups.push_back(option.group);
    }
  }
  // A command's own options come before those of every command.
  std::ranges::stable_partition(groups, [](const auto& group) { return group != kEverywhere; });
  for (const std::string& group : groups) {
    out += "\n" + Wrapped(group + ":", width, 2) + "\n";
    AddOptions(group, line, width, out);
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

// Longer lines are hard to read; a pager behind a pipe has at least 80 columns.
size_t HelpWidth() {
  const size_t columns = TerminalColumns(STDOUT_FILENO);
  return columns == kAnyWidth ? 80 : std::min<size_t>(columns, 100);
}

std::string Wrap(const std::string& text, size_t indent = 0) {
  return Wrapped(text, HelpWidth(), indent);
}

std::string ProgramName(const CommandEntry& entry) {
  return fmt::format("kvtool {}", entry.shown());
}

// Returns at most `most` examples of a command: those of the verb that was asked for, if there are
// any.
std::string ChooseExamples(const CommandEntry& entry, std::string_view verb, size_t most) {
  const std::string begin = fmt::format("  {} {} ", ProgramName(entry), verb);
  const bool has_own = !verb.empty() && entry.examples.find(begin) != std::string_view::npos;
  std::string chosen;
  for (std::string_view rest = entry.examples; !rest.empty() && most > 0;) {
    const std::string_view example = rest.substr(0, rest.find('\n') + 1);
    rest.remove_prefix(example.size());
    if (has_own && !example.starts_with(begin)) continue;
    chosen += example;
    --most;
  }
  return chosen;
}

// The name and the options of a command, or of its verb if one was given.
struct Subject {
  std::string program, verb, summary;
  LineDescription line;
};

Subject DescribeSubject(const CommandEntry& entry, const CommandLine& line) {
  Subject subject{ProgramName(entry), "", std::string(entry.summary), line.Describe()};
  const CommandLine* given = line.given_verb();
  if (given == nullptr) return subject;
  LineDescription own = given->Describe();
  // A verb takes the options of every command, too.
  for (OptionDescription& option : subject.line.options) {
    const bool is_own = std::ranges::any_of(
        own.options, [&](const auto& other) { return other.names == option.names; });
    if (option.group == kEverywhere && !is_own) own.options.push_back(std::move(option));
  }
  subject.line = std::move(own);
  subject.verb = subject.line.name;
  subject.summary = subject.line.summary;
  subject.program += " " + subject.verb;
  return subject;
}

std::string Help(const CommandEntry& entry, const Subject& subject, size_t examples, size_t width) {
  return fmt::format("{}\n\nExamples:\n{}\n{}\n",
                     Wrapped(fmt::format("{}: {}", subject.program, subject.summary), width, 0),
                     Wrapped(ChooseExamples(entry, subject.verb, examples), width, 4),
                     OptionsHelp(subject.program, subject.line, width));
}

// Returns the options that fit one screen: the essential ones, then those without a heading in
// their order, as long as there is room.
std::vector<OptionDescription> FirstOptions(const CommandEntry& entry, Subject subject) {
  constexpr size_t kMostLines = 40, kLinesAround = 4, kColumns = 80;
  const auto lines_in = [](const std::string& text) {
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  };
  std::vector<OptionDescription> all = std::move(subject.line.options);
  subject.line.options.clear();
  std::vector<bool> shows(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    shows[i] = all[i].positional() || all[i].essential;
    if (!shows[i]) continue;
    subject.line.options.push_back(all[i]);
    subject.line.options.back().group = kHeadless;
  }
  size_t lines = lines_in(Help(entry, subject, kFirstExamples, kColumns)) + kLinesAround;
  for (size_t i = 0; i < all.size(); ++i) {
    if (shows[i] || all[i].group != kHeadless) continue;
    std::string text;
    AddEntry(JoinNames(all[i]), FullText(all[i]), kColumns, text);
    lines += lines_in(text);
    if (lines > kMostLines) break;
    shows[i] = true;
  }
  std::vector<OptionDescription> first;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!shows[i]) continue;
    all[i].group = kHeadless;
    first.push_back(std::move(all[i]));
  }
  return first;
}

LineDescription DescribeLine(const CommandEntry& entry) {
  const std::unique_ptr<Command> command = entry.make();
  GlobalOptions global;
  CommandLine line(ProgramName(entry));
  Declare(line, *command, global);
  return line.Describe();
}

std::string CommandsOn(Shelf shelf, size_t names) {
  std::string text;
  for (const CommandEntry& entry : Commands()) {
    const bool is_family = entry.make == nullptr && shelf != Shelf::kFirst;
    if (entry.shelf != shelf || is_family) continue;
    text += Wrap(fmt::format("  {:<{}} {}\n", entry.shown(), names, entry.summary), names + 3);
  }
  return text;
}

std::string Overview() {
  std::string text = "Usage: kvtool COMMAND [OPTIONS]\n";
  for (const ShelfEntry& shelf : Shelves()) {
    text += fmt::format("\n{}:\n{}", shelf.heading, CommandsOn(shelf.shelf, 16));
  }
  std::string older;
  for (const CommandEntry& entry : Commands()) {
    if (!entry.words.empty()) {
      older += fmt::format("{}{} ({})", older.empty() ? "" : ", ", entry.name, entry.words);
    }
  }
  return text + "\n" + Wrap(fmt::format("Older names that still work: {}.\n", older)) +
         Wrap("'kvtool COMMAND -h' shows examples and the first options, '--help' all of them.\n");
}

// Returns the commands of a topic and, for the topic of many caches, the options for many inputs.
std::string TopicHelp(const ShelfEntry& shelf) {
  std::string text = fmt::format("{}:\n{}", shelf.heading, CommandsOn(shelf.shelf, 16));
  if (shelf.shelf == Shelf::kBatch) {
    text += "\n" + Wrap("Options of every command that treats each of its inputs alike:") + "\n";
    AddOptions(kManyInputs, DescribeLine(*FindCommand("inspect")), HelpWidth(), text);
  }
  return text + "\n" +
         Wrap("'kvtool COMMAND -h' shows examples and the first options, '--help' all of them.\n");
}

// Returns true if a word of the text begins with `word` or, if `anywhere`, contains it.
bool Mentions(std::string_view text, std::string_view word, bool anywhere) {
  const auto is_same = [](char a, char b) { return Lower(a) == Lower(b); };
  for (std::string_view rest = text;;) {
    const auto found = std::ranges::search(rest, word, is_same);
    if (found.empty()) return false;
    const auto at = static_cast<size_t>(&*found.begin() - text.data());
    if (anywhere || at == 0 || std::isalnum(static_cast<unsigned char>(text[at - 1])) == 0)
      return true;
    rest = text.substr(at + 1);
  }
}

// Returns the commands and options whose texts have a word that names no command, such as 'nats'.
std::string ListMentions(std::string_view topic, bool anywhere) {
  const std::string word(topic);
  const auto has = [&](std::string_view text) { return Mentions(text, word, anywhere); };
  std::string text;
  std::set<std::string> listed;  // shows an option of all commands only once
  for (const CommandDescription& command : DescribeCommands()) {
    std::string options;
    for (const OptionDescription& option : command.line.options) {
      const bool has_word = std::ranges::count(option.words, word) != 0;
      if ((has_word || has(option.text) || has(JoinNames(option))) &&
          listed.insert(JoinNames(option) + option.text).second)
        AddEntry(JoinNames(option), option.text, HelpWidth(), options);
    }
    if (options.empty() && !has(command.entry->summary)) continue;
    text += Wrap(fmt::format("\n{}: {}\n", ProgramName(*command.entry), command.entry->summary), 2);
    text += options;
  }
  if (text.empty()) return text;
  return fmt::format("Commands and options that mention '{}', each option once:\n{}",
                     Printable(topic), text) +
         Wrap("\ndocs/glossary.md explains the terms; 'kvtool help all' lists the commands.\n");
}

}  // namespace

const CommandEntry* FindCommand(std::string_view name) {
  if (name == "list") name = "inspect";
  for (const CommandEntry& entry : Commands()) {
    if (entry.name == name || entry.words == name) return &entry;
  }
  return nullptr;
}

std::vector<const CommandEntry*> FindMembers(const CommandEntry& family) {
  std::vector<const CommandEntry*> members;
  for (const CommandEntry& entry : Commands()) {
    if (entry.words.starts_with(fmt::format("{} ", family.name))) members.push_back(&entry);
  }
  return members;
}

std::string_view SecondWord(const CommandEntry& member) {
  return member.words.substr(member.words.find(' ') + 1);
}

GivenCommand TakeCommand(int count, char* const* words) {
  if (count < 1 || *words[0] == '\0') return {};
  if (count > 1) {
    const CommandEntry* entry = FindCommand(fmt::format("{} {}", words[0], words[1]));
    if (entry != nullptr) return {entry, 2};
  }
  return {FindCommand(words[0]), 1};
}

namespace {

// Returns the command of two words whose second one is `verb`: "evict" is that of "replay evict".
const CommandEntry* FindVerb(std::string_view verb) {
  for (const CommandEntry& entry : Commands()) {
    const bool is_older_name = entry.name.ends_with(fmt::format("-{}", verb));
    if (!entry.words.empty() && (verb == SecondWord(entry) || is_older_name)) return &entry;
  }
  return nullptr;
}

}  // namespace

std::string MeantCommand(std::string_view word) {
  std::vector<std::string> verbs;
  for (const CommandEntry& entry : Commands()) {
    if (!entry.words.empty()) verbs.emplace_back(SecondWord(entry));
  }
  if (const CommandEntry* entry = FindVerb(word)) return ProgramName(*entry);
  if (eviction::FindPolicy(word) != nullptr) {
    return fmt::format("{} --policy {}", ProgramName(*FindCommand("replay-h2o")), word);
  }
  const std::string verb = Nearest(word, verbs);
  return verb.empty() ? "" : fmt::format("kvtool replay {}", verb);
}

Error UnknownCommand(std::string_view name) {
#ifdef KVTOOL_WITHOUT_STORE
  if (name == "store") {
    return Error(Finding::kUsage, "this kvtool is built without stores")
        .Hint("build it with KVTOOL_STORE=ON, for which it needs SQLite");
  }
#endif
  if (name.starts_with('-')) {
    return Error(Finding::kUsage, "'{}' stands before the command", Escaped(name))
        .Hint("options follow it: kvtool COMMAND [OPTIONS] FILE...");
  }
  std::vector<std::string> names;
  for (const CommandEntry& entry : Commands()) {
    names.emplace_back(entry.name);
    if (!entry.words.empty()) names.emplace_back(entry.words);
  }
  std::string nearest = MeantWord(name, names);
  if (nearest.empty()) nearest = MeantCommand(name);
  std::string message = fmt::format("unknown command '{}'", Escaped(name));
  if (!nearest.empty()) message += fmt::format("; did you mean '{}'?", nearest);
  std::error_code failed;
  const bool is_file = std::filesystem::exists(name, failed);
  return Error(Finding::kUsage, std::move(message))
      .Hint("{}", is_file
                      ? fmt::format("'kvtool doctor {}' says what this file is and which command "
                                    "comes next",
                                    Escaped(name))
                      : "'kvtool help' lists the commands");
}

std::string VersionLine() {
  return fmt::format("kvtool {} ({}), SIMD {}", KVTOOL_VERSION, kBuildCommit, ActiveSimdTarget());
}

namespace {

struct AboutProgram {};

const Fields<AboutProgram>& AboutProgramFields() {
  using Of = AboutProgram;
  static const Fields<Of> fields = {
      NoInputs<Of>(),
      {"version", "Version of the program", [](const Of&) { return KVTOOL_VERSION; }},
      {"git", "Commit that the program was built from", [](const Of&) { return kBuildCommit; }},
      {"simd", "The SIMD target in use", [](const Of&) { return ActiveSimdTarget(); }},
      {"json_versions", "What --json-version may be",
       [](const Of&) { return std::vector{kJsonVersion}; }}};
  return fields;
}

}  // namespace

const FieldTable& VersionFields() { return AboutProgramFields(); }
Value VersionDocument() { return AboutProgramFields().Object({}); }

std::string FirstScreen() {
  return Wrap(
             "kvtool: what is in this KV cache, does it compress, is the restored one the "
             "same?\n") +
         "\nUsage: kvtool COMMAND [OPTIONS] FILE...\n\n" + CommandsOn(Shelf::kFirst, 11) + "\n" +
         Wrap("more: kvtool help batch | engines | all, kvtool help COMMAND\n") +
         Wrap("'kvtool COMMAND -h' shows examples and the first options, '--help' all of them;\n") +
         Wrap("'kvtool doctor FILE' says what a file is and which command comes next.\n");
}

std::string FamilyHelp(const CommandEntry& family) {
  LineDescription line{std::string(family.name), std::string(family.summary), {}, {}};
  for (const CommandEntry* member : FindMembers(family)) {
    line.verbs.push_back({std::string(SecondWord(*member)), std::string(member->summary), {}, {}});
  }
  const Subject subject{ProgramName(family), "", line.summary, line};
  return Help(family, subject, kFirstExamples, HelpWidth()) +
         Wrap(fmt::format("'{} VERB -h' shows examples and options of one.\n", subject.program));
}

std::string ShortHelp(const CommandEntry& entry, const CommandLine& line) {
  Subject subject = DescribeSubject(entry, line);
  const size_t count = subject.line.options.size();
  subject.line.options = FirstOptions(entry, subject);
  return Help(entry, subject, kFirstExamples, HelpWidth()) +
         Wrap(fmt::format("'{} --help' lists all {} options.\n", subject.program, count));
}

std::string LongHelp(const CommandEntry& entry, const CommandLine& line) {
  Subject subject = DescribeSubject(entry, line);
  const size_t all = std::erase_if(subject.line.options, [](const OptionDescription& option) {
    return option.group == kManyInputs && !option.essential;
  });
  return Help(entry, subject, std::string::npos, HelpWidth()) +
         (all == 0 ? ""
                   : Wrap(fmt::format("{}: 'kvtool help batch' lists the options for folders, "
                                      "lists and corpora.\n",
                                      kManyInputs))) +
         Wrap(
             "Exit status: 0 done, 1 a negative verdict (mismatch, gate failed), 2 wrong usage, 3 "
             "invalid input, 4 I/O, 5 recognised but unsupported, 70 a bug, 130 interrupted.\n");
}

std::string HelpOn(int count, char* const* words) {
  const std::string_view topic = words[0];
  if (topic == "all" || topic == "topics") return Overview();
  for (const ShelfEntry& shelf : Shelves()) {
    if (shelf.topic == topic && !topic.empty()) return TopicHelp(shelf);
  }
  GivenCommand given = TakeCommand(count, words);
  if (given.entry == nullptr) given = {FindVerb(topic), 1};
  if (given.entry == nullptr) {
    std::string mentions = ListMentions(topic, false);
    constexpr size_t kLeastLetters = 4;  // shorter topics match only beginnings of words
    if (mentions.empty() && topic.size() >= kLeastLetters) mentions = ListMentions(topic, true);
    if (mentions.empty()) {
      throw UnknownCommand(topic).Hint(
          "'kvtool help all' lists the commands; docs/glossary.md explains the terms");
    }
    return mentions;
  }
  if (given.entry->make == nullptr) {
    if (count > 1) throw UnknownCommand(fmt::format("{} {}", topic, words[1]));
    return FamilyHelp(*given.entry);
  }
  const std::unique_ptr<Command> command = given.entry->make();
  GlobalOptions global;
  CommandLine line(ProgramName(*given.entry));
  Declare(line, *command, global);
  std::vector<std::string> rest(words + given.words - 1, words + count);
  rest.emplace_back("--help");
  std::vector<char*> pointers;
  for (std::string& word : rest) pointers.push_back(word.data());
  line.Parse(static_cast<int>(pointers.size()), pointers.data());
  return LongHelp(*given.entry, line);
}

bool NeedsWord(const CommandEntry& entry) {
  return std::ranges::any_of(DescribeLine(entry).options, [](const OptionDescription& option) {
    return option.positional() && option.required;
  });
}

std::vector<CommandDescription> DescribeCommands() {
  std::vector<CommandDescription> all;
  for (const CommandEntry& entry : Commands()) {
    if (entry.make != nullptr) all.push_back({&entry, DescribeLine(entry)});
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
  if (option.closed && words.size() <= kMost) return words + (option.listed ? ",..." : "");
  return option.value + (option.listed ? ",..." : "");
}

}  // namespace kv
