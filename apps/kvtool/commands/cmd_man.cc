// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool man`: manual pages, generated from the table of commands.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/line/help.h"
#include "version.h"

namespace kv {
namespace {

// Manual pages in the language of man(7), the same on every machine.
struct ManualPage {
  std::string file;  // "kvtool-compress.1"
  std::string text;
};

// Escapes running text. A line that begins with a dot or an apostrophe is a request.
std::string Roff(std::string_view text) {
  std::string escaped;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) escaped += "\\&";
    begins = c == '\n';
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// Returns the title; `older` is another name that finds the page.
std::string PageTitle(std::string_view name, std::string_view summary,
                      const std::string& older = "") {
  std::string upper(name);
  for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return fmt::format(".TH {} 1 \"\" \"kvtool {}\" \"User Commands\"\n.SH NAME\n{}{} \\- {}\n",
                     Roff(upper), KVTOOL_VERSION, Roff(name),
                     older.empty() ? "" : ", " + Roff(older), Roff(summary));
}

std::string RoffValue(const OptionDescription& option) {
  const std::string value = ValueText(option);
  return value.empty() ? value : fmt::format(" \\fI{}\\fR", Roff(value));
}

std::string OptionEntry(const OptionDescription& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) {
    names.push_back(option.positional()
                        ? fmt::format("\\fI{}\\fR{}", Roff(name), option.many ? " ..." : "")
                        : fmt::format("\\fB{}\\fR", Roff(name)));
  }
  std::string text =
      fmt::format(".TP\n{}{}\n{}", fmt::join(names, ", "),
                  option.positional() ? std::string() : RoffValue(option), Roff(option.text));
  if (!text.ends_with('.') && !text.ends_with(')')) text += '.';
  if (!option.words.empty()) {
    text += fmt::format("\nValues: {}.", Roff(fmt::format("{}", fmt::join(option.words, ", "))));
  }
  if (!option.standard.empty()) text += fmt::format("\nDefault: {}.", Roff(option.standard));
  if (!option.environment.empty()) {
    text += fmt::format("\nAlso read from \\fB{}\\fR.", Roff(option.environment));
  }
  if (option.required && !option.positional()) text += "\nRequired.";
  return text + "\n";
}

// Lists positional arguments, then the options by their headings, in the order of declaration.
std::string OptionEntries(const LineDescription& line) {
  std::string text;
  std::vector<std::string> groups;
  for (const OptionDescription& option : line.options) {
    if (option.positional()) {
      text += OptionEntry(option);
    } else if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) {
      groups.push_back(option.group);
    }
  }
  for (const std::string& group : groups) {
    if (group != "Options") text += fmt::format(".SS {}\n", Roff(group));
    for (const OptionDescription& option : line.options) {
      if (!option.positional() && option.group == group) text += OptionEntry(option);
    }
  }
  return text;
}

std::string UsageLine(std::string_view program, const LineDescription& line) {
  std::string text = fmt::format("\\fB{}\\fR [\\fIOPTIONS\\fR]", Roff(program));
  for (const OptionDescription& option : line.options) {
    if (!option.positional()) continue;
    const std::string place =
        fmt::format("\\fI{}\\fR{}", Roff(option.names.front()), option.many ? " ..." : "");
    text += option.required ? fmt::format(" {}", place) : fmt::format(" [{}]", place);
  }
  return text + "\n";
}

constexpr std::string_view kExitStatus =
    ".SH EXIT STATUS\n"
    ".TP\n0\nDone; equal; the gate passed.\n"
    ".TP\n1\nA negative verdict: a mismatch, damage, a gate that failed.\n"
    ".TP\n2\nWrong usage.\n.TP\n3\nInvalid input.\n.TP\n4\nAn input or output failed.\n"
    ".TP\n5\nRecognised but unsupported.\n.TP\n70\nA bug in kvtool.\n.TP\n130\nInterrupted.\n";

// Returns "kvtool-replay-evict".
std::string PageName(const CommandEntry& entry) {
  std::string name = fmt::format("kvtool-{}", entry.shown());
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

// Returns the page of a command's older name, "kvtool-replay-h2o", which refers to its own; "" if
// both are the same, or there is none.
std::string OlderPage(const CommandEntry& entry) {
  const std::string name = fmt::format("kvtool-{}", entry.name);
  return name == PageName(entry) ? std::string() : name;
}

// Returns an entry of a list of pages.
std::string PageEntry(const CommandEntry& entry) {
  return fmt::format(".TP\n.BR {} (1)\n{}\n", Roff(PageName(entry)), Roff(entry.summary));
}

std::string CommandPage(const CommandDescription& command) {
  const CommandEntry& entry = *command.entry;
  const std::string program = fmt::format("kvtool {}", entry.shown());
  std::string text = PageTitle(PageName(entry), entry.summary, OlderPage(entry)) + ".SH SYNOPSIS\n";
  if (command.line.verbs.empty()) text += UsageLine(program, command.line);
  for (const LineDescription& verb : command.line.verbs) {
    text += (text.ends_with("SYNOPSIS\n") ? "" : ".br\n") +
            UsageLine(fmt::format("{} {}", program, verb.name), verb);
  }
  text += fmt::format(".SH EXAMPLES\n.nf\n{}.fi\n.SH OPTIONS\n{}", Roff(entry.examples),
                      OptionEntries(command.line));
  for (const LineDescription& verb : command.line.verbs) {
    text += fmt::format(".SH {}\n{}\n{}", Roff(fmt::format("{} {}", program, verb.name)),
                        Roff(verb.summary), OptionEntries(verb));
  }
  return text + std::string(kExitStatus) + ".SH SEE ALSO\n.BR kvtool (1)\n";
}

// Returns the page of a word that only begins others: `kvtool replay`.
std::string FamilyPage(const CommandEntry& family) {
  std::string text = PageTitle(PageName(family), family.summary);
  text += fmt::format(
      ".SH SYNOPSIS\n\\fBkvtool {}\\fR \\fIVERB\\fR [\\fIOPTIONS\\fR]\n.SH EXAMPLES\n.nf\n{}.fi\n"
      ".SH VERBS\n",
      family.name, Roff(family.examples));
  for (const CommandEntry* member : FindMembers(family)) text += PageEntry(*member);
  return text + std::string(kExitStatus) + ".SH SEE ALSO\n.BR kvtool (1)\n";
}

std::string MainPage(const std::vector<CommandDescription>& commands) {
  std::string text =
      PageTitle("kvtool", "analyse, compress, compare and replay the KV caches of LLM engines") +
      ".SH SYNOPSIS\n\\fBkvtool\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n"
      "kvtool reads the key\\-value caches, attention traces and compressor weights that LLM "
      "engines leave on "
      "disk, offline and on the CPU.\nIt tells what is in them, compresses them without losing a "
      "bit, and "
      "replays what an engine would do to them.\nResults go to the standard output and messages to "
      "the "
      "standard error; with \\fB\\-\\-json\\fR a command prints a document whose schema \\fBkvtool "
      "schema\\fR prints.\n.SH COMMANDS\n";
  for (const ShelfEntry& shelf : Shelves()) {
    text += fmt::format(".SS {}\n", Roff(shelf.heading));
    for (const CommandDescription& command : commands) {
      if (command.entry->shelf != shelf.shelf) continue;
      text += PageEntry(*command.entry);
    }
  }
  text +=
      ".SH ENVIRONMENT\n.TP\n\\fBKVTOOL_CONFIG\\fR\nA file with defaults of options, as "
      "\\fB\\-\\-config\\fR reads.\n"
      ".TP\n\\fBKVTOOL_THREADS\\fR, \\fBKVTOOL_SIMD\\fR\nAs \\fB\\-\\-threads\\fR and "
      "\\fB\\-\\-simd\\fR.\n"
      ".TP\n\\fBNO_COLOR\\fR\nNo colour.\n";
  return text + std::string(kExitStatus);
}

// Returns kvtool(1), then a page for each command.
std::vector<ManualPage> ManualPages(const std::vector<CommandDescription>& commands) {
  std::vector<ManualPage> pages = {{"kvtool.1", MainPage(commands)}};
  for (const CommandDescription& command : commands) {
    const std::string page = PageName(*command.entry) + ".1", older = OlderPage(*command.entry);
    pages.push_back({page, CommandPage(command)});
    if (!older.empty()) pages.push_back({older + ".1", fmt::format(".so man1/{}\n", page)});
  }
  for (const CommandEntry& entry : Commands()) {
    if (entry.make == nullptr) pages.push_back({PageName(entry) + ".1", FamilyPage(entry)});
  }
  return pages;
}

class Man : public Command {
 public:
  void Declare(CommandLine& line) override {
    std::vector<std::string> names;
    for (const CommandEntry& entry : Commands()) {
      if (entry.words.empty()) names.emplace_back(entry.name);
    }
    line.Add("COMMAND", command_, "Command whose page is printed (default: kvtool's own)")
        .Suggest(names);
    line.Add("--output-dir", folder_, "Write every page to a folder, as NAME.1");
    line.AddFlag("-f,--force", force_, "Overwrite pages");
  }

  ExitStatus Run(Context& context) override {
    const std::string name = fmt::format("{}", fmt::join(command_, " "));
    const CommandEntry* entry = FindCommand(name);
    if (!name.empty() && entry == nullptr) throw UnknownCommand(name);
    const std::vector<ManualPage> pages = ManualPages(DescribeCommands());
    if (!folder_.empty()) {
      if (!command_.empty())
        throw Error(Finding::kUsage, "--output-dir writes the pages of all commands");
      std::error_code ignored;  // a missing folder is reported when the first page is written
      std::filesystem::create_directories(folder_, ignored);
      for (const ManualPage& page : pages) {
        WriteText(fmt::format("{}/{}", folder_, page.file), page.text, RulesFor(force_));
      }
      return kDone;
    }
    const std::string file = (name.empty() ? "kvtool" : PageName(*entry)) + ".1";
    for (const ManualPage& page : pages) {
      if (page.file == file) context.console.Product(page.text);
    }
    return kDone;
  }

 private:
  std::vector<std::string> command_;
  std::string folder_;
  bool force_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeMan() { return std::make_unique<Man>(); }

}  // namespace kv
