// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool completion`: scripts for bash, zsh and fish, generated from the table of commands.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/line/help.h"

namespace kv {
namespace {

std::vector<std::string> ListFlags(const LineDescription& line) {
  std::vector<std::string> flags;
  for (const OptionDescription& option : line.options) {
    if (option.positional()) continue;
    flags.insert(flags.end(), option.names.begin(), option.names.end());
  }
  return flags;
}

bool TakesFile(const OptionDescription& option) {
  return option.value == "FILE" || option.value == "FOLDER" || option.value == "TEXT";
}

// Returns the words that may follow a command without a flag: its verbs, and the values of its
// first positional argument.
std::vector<std::string> ListWords(const LineDescription& line) {
  std::vector<std::string> words;
  for (const LineDescription& verb : line.verbs) words.push_back(verb.name);
  const auto place =
      std::find_if(line.options.begin(), line.options.end(),
                   [](const OptionDescription& option) { return option.positional(); });
  if (place != line.options.end()) {
    words.insert(words.end(), place->words.begin(), place->words.end());
  }
  return words;
}

std::string CommandNames() {
  std::string names = "help";
  for (const CommandEntry& entry : Commands()) {
    if (entry.words.empty()) names += fmt::format(" {}", entry.name);
  }
  return names;
}

// Returns the second words of the commands of a family.
std::string SecondWords(const CommandEntry& family) {
  std::string words;
  for (const CommandEntry* member : FindMembers(family))
    words += fmt::format("{}{}", words.empty() ? "" : " ", SecondWord(*member));
  return words;
}

// Returns lines of a shell's `case`, one per family, by `line`, which is called with its second
// words.
template <typename Line>
std::string ForEachFamily(const Line& line) {
  std::string text;
  for (const CommandEntry& entry : Commands()) {
    if (entry.make == nullptr) text += line(entry.name, SecondWords(entry));
  }
  return text;
}

// Returns lines of a `case` that turn the older name of a command into its current words.
std::string OlderNames() {
  std::string text;
  for (const CommandEntry& entry : Commands()) {
    if (!entry.words.empty()) {
      text += fmt::format("    {}) command='{}' ;;\n", entry.name, entry.words);
    }
  }
  return text;
}

// Returns a line of a `case` for each option that takes a value, with what completes the value.
std::string BashValues(std::string_view command, const LineDescription& line) {
  std::string text;
  for (const OptionDescription& option : line.options) {
    if (option.positional() || option.value.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : option.names)
      patterns.push_back(fmt::format("'{} {}'", command, name));
    text += fmt::format("    {}) ", fmt::join(patterns, " | "));
    if (!option.words.empty()) {
      text += fmt::format("words='{}' ;;\n", fmt::join(option.words, " "));
    } else {
      text += TakesFile(option) ? "files=yes ;;\n" : ";;\n";
    }
  }
  for (const LineDescription& verb : line.verbs) text += BashValues(command, verb);
  return text;
}

// Returns the options of a command and of all its verbs, and the words that need no flag.
std::string BashCommand(const CommandDescription& command) {
  std::vector<std::string> flags = ListFlags(command.line);
  for (const LineDescription& verb : command.line.verbs) {
    const std::vector<std::string> more = ListFlags(verb);
    flags.insert(flags.end(), more.begin(), more.end());
  }
  std::sort(flags.begin(), flags.end());
  flags.erase(std::unique(flags.begin(), flags.end()), flags.end());
  return fmt::format("    '{}') flags='{}' words='{}' ;;\n", command.entry->shown(),
                     fmt::join(flags, " "), fmt::join(ListWords(command.line), " "));
}

// Escapes a word for single quotes.
std::string Quoted(std::string_view text, std::string_view quote) {
  std::string quoted;
  for (const char c : text) {
    if (c == '\'') {
      quoted += quote;
    } else {
      quoted += c;
    }
  }
  return quoted;
}

// Escapes text for the brackets of zsh's _arguments.
std::string ZshText(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return Quoted(escaped, "'\\''");
}

std::string ZshAction(const OptionDescription& option) {
  if (!option.words.empty()) return fmt::format("({})", fmt::join(option.words, " "));
  return TakesFile(option) ? "_files" : " ";
}

std::string ZshArguments(const LineDescription& line, std::string_view indent) {
  std::string text = "_arguments -S";
  for (const OptionDescription& option : line.options) {
    if (option.positional()) continue;
    for (const std::string& name : option.names) {
      text += fmt::format(" \\\n{}'*{}[{}]{}'", indent, name, ZshText(option.text),
                          option.value.empty()
                              ? std::string()
                              : fmt::format(":{}:{}", option.value, ZshAction(option)));
    }
  }
  const std::vector<std::string> words = ListWords(line);
  return text + (words.empty() ? fmt::format(" \\\n{}'*:file:_files'\n", indent)
                               : fmt::format(" \\\n{}'1:word:({})' '*:file:_files'\n", indent,
                                             fmt::join(words, " ")));
}

void AddFishOptions(std::string_view condition, const LineDescription& line, std::string& text) {
  for (const OptionDescription& option : line.options) {
    if (option.positional()) continue;
    text += fmt::format("complete -c kvtool -n '{}'", condition);
    for (const std::string& name : option.names) {
      text += name.starts_with("--") ? fmt::format(" -l {}", name.substr(2))
                                     : fmt::format(" -s {}", name.substr(1));
    }
    if (!option.value.empty()) text += TakesFile(option) && option.words.empty() ? " -r" : " -x";
    if (!option.words.empty()) text += fmt::format(" -a '{}'", fmt::join(option.words, " "));
    text += fmt::format(" -d '{}'\n", Quoted(option.text, "\\'"));
  }
}

// Returns the completion of a shell as a script: commands, verbs, options, and the values of
// options; file names elsewhere.
std::string BashCompletion(const std::vector<CommandDescription>& commands) {
  std::string by_command, values;
  for (const CommandDescription& command : commands) {
    by_command += BashCommand(command);
    values += BashValues(command.entry->shown(), command.line);
  }
  by_command += ForEachFamily([](std::string_view name, const std::string& words) {
    return fmt::format("    {}) words='{}' ;;\n", name, words);
  });
  const std::string families = ForEachFamily([](std::string_view name, const std::string&) {
    return fmt::format(
        "    {}) ((i + 1 < COMP_CWORD)) && command+=\" ${{COMP_WORDS[i + 1]}}\" ;;\n", name);
  });
  return fmt::format(R"(# bash completion of kvtool: source <(kvtool completion bash)
_kvtool() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
  local command= flags= words= files= i
  # "--level=h" comes as three words.
  if [[ $current == = ]]; then
    current=
  elif [[ $previous == = ]]; then
    previous=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ ${{COMP_WORDS[i]}} != -* ]]; then
      command=${{COMP_WORDS[i]}}
      break
    fi
  done
  COMPREPLY=()
  if [[ -z $command ]]; then
    COMPREPLY=($(compgen -W '{0} --version' -- "$current"))
    return
  fi
  case $command in
{3}{4}  esac
  case "$command $previous" in
{2}    *)
      case $command in
    help) words='{0}' ;;
{1}      esac
      files=yes
      if [[ $current == -* ]]; then
        words=$flags
        files=
      fi
      ;;
  esac
  [[ -z $words ]] || COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ -n $files ]]; then
    local IFS=$'\n'
    compopt -o filenames 2> /dev/null
    COMPREPLY+=($(compgen -f -- "$current"))
  fi
}}
complete -F _kvtool kvtool
)",
                     CommandNames(), by_command, values, families, OlderNames());
}

std::string ZshCompletion(const std::vector<CommandDescription>& commands) {
  std::string names, by_command;
  for (const CommandEntry& entry : Commands()) {
    if (!entry.words.empty()) continue;
    names += fmt::format("    '{}:{}'\n", entry.name, ZshText(entry.summary));
  }
  const std::string families = ForEachFamily([](std::string_view name, const std::string& words) {
    return fmt::format(
        "    {})\n      if (( CURRENT == 2 )); then\n        compadd {}\n        return\n      fi\n"
        "      command+=\" $words[2]\"\n      shift words\n      (( CURRENT-- ))\n      ;;\n",
        name, words);
  });
  for (const CommandDescription& command : commands) {
    by_command += fmt::format("    '{}')\n      ", command.entry->shown());
    by_command += ZshArguments(command.line, "        ") + "      ;;\n";
  }
  return fmt::format(R"(#compdef kvtool
# zsh completion of kvtool: kvtool completion zsh > a folder of $fpath/_kvtool
_kvtool() {{
  local -a commands
  commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{}{}  esac
  case $command in
{}  esac
}}
if [[ $funcstack[1] == _kvtool ]]; then _kvtool "$@"; else compdef _kvtool kvtool; fi
)",
                     names, families, OlderNames(), by_command);
}

std::string FishCompletion(const std::vector<CommandDescription>& commands) {
  std::string text =
      "# fish completion of kvtool: kvtool completion fish > "
      "~/.config/fish/completions/kvtool.fish\n";
  for (const CommandEntry& entry : Commands()) {
    if (!entry.words.empty()) continue;
    text += fmt::format("complete -c kvtool -n __fish_use_subcommand -f -a {} -d '{}'\n",
                        entry.name, Quoted(entry.summary, "\\'"));
  }
  text += ForEachFamily([](std::string_view name, const std::string& words) {
    return fmt::format("complete -c kvtool -n '__fish_seen_subcommand_from {}' -a '{}'\n", name,
                       words);
  });
  for (const CommandDescription& command : commands) {
    const CommandEntry& entry = *command.entry;
    const size_t space = entry.words.find(' ');
    const std::string condition =
        entry.words.empty()
            ? fmt::format("__fish_seen_subcommand_from {}", entry.name)
            : fmt::format(
                  "__fish_seen_subcommand_from {}; and __fish_seen_subcommand_from {}; or "
                  "__fish_seen_subcommand_from {}",
                  entry.words.substr(0, space), entry.words.substr(space + 1), entry.name);
    const std::vector<std::string> words = ListWords(command.line);
    if (!words.empty()) {
      text += fmt::format("complete -c kvtool -n '{}' -a '{}'\n", condition, fmt::join(words, " "));
    }
    AddFishOptions(condition, command.line, text);
    for (const LineDescription& verb : command.line.verbs) {
      AddFishOptions(fmt::format("{}; and __fish_seen_subcommand_from {}", condition, verb.name),
                     verb, text);
    }
  }
  return text;
}

class Completion : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("SHELL", shell_, "bash, zsh or fish").OneOf({"bash", "zsh", "fish"}).Required();
  }

  ExitStatus Run(Context& context) override {
    const std::vector<CommandDescription> commands = DescribeCommands();
    context.console.Product(shell_ == "bash"  ? BashCompletion(commands)
                            : shell_ == "zsh" ? ZshCompletion(commands)
                                              : FishCompletion(commands));
    return kDone;
  }

 private:
  std::string shell_;
};

}  // namespace

std::unique_ptr<Command> MakeCompletion() { return std::make_unique<Completion>(); }

}  // namespace kv
