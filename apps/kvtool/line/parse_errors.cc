// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Unknown words get the most similar known one; other errors of the parser are reworded.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "apps/kvtool/line/command_line.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/utf8.h"

namespace kv {

std::string HintOfUse(const CLI::App& app) {
  std::string command = app.get_name();
  for (const CLI::App* verb = &app; !verb->get_subcommands().empty();) {
    verb = verb->get_subcommands().front();
    command += " " + verb->get_name();
  }
  return fmt::format("'{} -h' shows how it is used", command);
}

bool IsHidden(const CLI::Option& option, const Option::WriteNotes& notes) {
  const auto found = notes.find(&option);
  return option.get_group().empty() || (found != notes.end() && found->second.hidden);
}

bool IsAlias(const CLI::Option& option, const std::string& name, const Option::WriteNotes& notes) {
  const auto found = notes.find(&option);
  if (found == notes.end()) return false;
  const std::vector<std::string>& aliases = found->second.aliases;
  return std::find(aliases.begin(), aliases.end(), name) != aliases.end();
}

namespace {

// Explains "INI was not able to parse levle" and suggests a similar option.
Error ExplainConfigError(std::string_view text, const CLI::App& app) {
  std::string_view key = text.substr(text.find_last_of(' ') + 1);
  if (key.ends_with(".++")) key.remove_suffix(3);  // a section's opening
  std::vector<std::string> keys;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) keys.push_back(name);
  }
  const std::string nearest = Nearest(key, keys);
  return Error(Finding::kUsage, "--config: unknown key or section '{}'{}", Escaped(key, 80),
               nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest))
      .Hint("keys are the long names of options; '{} --help' lists them", app.get_name());
}

// Everything that may replace an unknown word: flags and verbs of the applicable levels. Older
// names are known, but not suggested.
struct KnownWords {
  std::vector<std::string> shown, all;
};
KnownWords ListKnownWords(const CLI::App& app, const Option::WriteNotes& notes) {
  KnownWords words;
  const auto add = [&](const std::string& word, bool is_shown) {
    words.all.push_back(word);
    if (is_shown) words.shown.push_back(word);
  };
  for (const CLI::App* level = &app; level != nullptr;
       level = level->get_subcommands().empty() ? nullptr : level->get_subcommands().front()) {
    for (const CLI::Option* option : level->get_options()) {
      for (const std::string& name : option->get_snames()) add("-" + name, false);
      for (const std::string& name : option->get_lnames()) {
        const bool is_shown = !IsHidden(*option, notes);
        add("--" + name, is_shown && !IsAlias(*option, "--" + name, notes));
      }
    }
    // Once a verb is given, the other verbs are known but not suggested.
    for (const CLI::App* child : level->get_subcommands(nullptr))
      add(child->get_name(), level->get_subcommands().empty());
  }
  return words;
}

// kvtool's words, each with the words that other programs use for it.
constexpr std::pair<std::string_view, std::string_view> kOtherWords[] = {
    {"list", "ls"},
    {"add", "put save create"},
    {"remove", "rm delete"},
    {"get", "restore extract"},
    {"inspect", "show info ls"},
    {"verify", "fsck check test"},
    {"compress", "pack"},
    {"decompress", "unpack extract restore"},
    {"diff", "compare"},
    {"doctor", "identify"},
    {"--level", "--best"},
    {"--csv", "--csv-out"},
    {"--figure-out", "--plot"},
    {"--idle-days", "--older-than"},
    {"--keep-last", "--older-than"},
    {"--max-error", "--max-loss"},
    {"--target-ratio", "--ratio"},
    {"--budget", "--keep"}};

// Explains that a verb is missing, or that the first word is not one.
Error ExplainVerb(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) verbs.push_back(verb->get_name());
  char** const word = std::find_if(argv + 1, argv + argc, [](char* one) { return *one != '-'; });
  std::string text = "a verb is missing";
  std::error_code failed;
  if (word != argv + argc && std::filesystem::exists(*word, failed)) {
    text += fmt::format(" before '{}'", Escaped(*word));
  } else if (word != argv + argc) {
    const std::string meant = MeantWord(*word, verbs);
    text = fmt::format("'{}' is not one of its verbs{}", Escaped(*word),
                       meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant));
  }
  return Error(Finding::kUsage, "{}: {}", app.get_name().substr(app.get_name().find(' ') + 1), text)
      .Hint("the verb{} {}; {}", verbs.size() == 1 ? " is" : "s are", fmt::join(verbs, ", "),
            HintOfUse(app));
}

// Returns "--k, --v": options whose text contains the unknown flag's word, as for --types.
std::string OptionsAbout(std::string_view flag, const CLI::App& app,
                         const Option::WriteNotes& notes) {
  constexpr size_t kMost = 3, kLeastLetters = 4;
  const std::string_view word = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  std::string all;
  size_t count = 0;
  for (const CLI::Option* option : app.get_options()) {
    const bool is_shown = !IsHidden(*option, notes) && !option->get_lnames().empty();
    if (!is_shown || word.size() < kLeastLetters ||
        !ContainsIgnoringCase(option->get_description(), word))
      continue;
    if (++count <= kMost) all += (all.empty() ? "--" : ", --") + option->get_lnames().front();
  }
  return all;
}

// "--mode is required: one of probe, full, store", or "FILE is required, after STORE".
std::string RequiredText(std::string text, const CLI::App& app, const Option::WriteNotes& notes) {
  const CLI::App* verb = &app;
  while (!verb->get_subcommands().empty()) verb = verb->get_subcommands().front();
  std::string before;
  for (const CLI::Option* option : verb->get_options()) {
    if (!option->get_positional()) continue;
    if (text.starts_with(option->get_name() + " ")) {
      text += before;
      break;
    }
    before += (before.empty() ? ", after " : " ") + option->get_name();
  }
  for (const auto& [option, of] : notes) {
    const bool is_meant = of.closed && text.starts_with(option->get_name() + " ");
    if (is_meant && app.get_option_no_throw(option->get_name()) == option)
      text += fmt::format(": one of {}", fmt::join(of.words, ", "));
  }
  return text;
}

// Returns "--baseline is given more than once", for "--baseline: At Most 1 required but received
// 2", and "--csv: its FILE is missing", for "--csv: 1 required FILE missing".
std::string MismatchText(std::string text) {
  constexpr std::string_view kOne = ": 1 required ", kMissing = " missing";
  const size_t most = text.find(": At Most 1 required"), one = text.find(kOne);
  if (most != text.npos)
    return text.substr(0, most) + " is given more than once: it takes one value";
  if (one == text.npos || !text.ends_with(kMissing)) return text;
  text.replace(one, kOne.size(), ": its ");
  return text.insert(text.size() - kMissing.size(), " is");
}

}  // namespace

std::string MeantWord(std::string_view word, const std::vector<std::string>& words) {
  for (const auto& [ours, theirs] : kOtherWords) {
    if (HasWord(theirs, word) && std::find(words.begin(), words.end(), ours) != words.end())
      return std::string(ours);
  }
  return Nearest(word, words);
}

Error ExplainParseError(const CLI::ParseError& error, const CLI::App& app,
                        const Option::WriteNotes& notes, int argc, char** argv) {
  if (dynamic_cast<const CLI::ConfigError*>(&error) != nullptr) {
    return ExplainConfigError(error.what(), app);
  }
  const bool is_extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const bool lacks_verb = app.get_subcommands().empty() && !app.get_subcommands(nullptr).empty();
  if (lacks_verb &&
      (is_extra ? *argv[1] != '-' : dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)) {
    return ExplainVerb(app, argc, argv);
  }
  if (is_extra) {
    const KnownWords known = ListKnownWords(app, notes);
    std::string unknown;  // the first unknown option that resembles no known one
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const std::string flag = word.substr(0, word.find('='));
      if (std::find(known.all.begin(), known.all.end(), flag) != known.all.end()) continue;
      const std::string nearest = MeantWord(flag, known.shown);
      if (!nearest.empty() && (flag[0] == '-') == (nearest[0] == '-')) {
        return Error(Finding::kUsage, "unknown '{}'; did you mean '{}'?", Escaped(flag), nearest)
            .Hint(HintOfUse(app));
      }
      const std::string about = flag[0] == '-' ? OptionsAbout(flag, app, notes) : std::string();
      if (!about.empty()) {
        return Error(Finding::kUsage, "unknown '{}'; see {}", Escaped(flag), about)
            .Hint(HintOfUse(app));
      }
      if (unknown.empty() && flag.starts_with('-') && flag.size() > 1) unknown = flag;
    }
    if (!unknown.empty())
      return Error(Finding::kUsage, "unknown option '{}'", Escaped(unknown)).Hint(HintOfUse(app));
    const std::vector<std::string> left = app.remaining(true);
    if (!left.empty()) {
      return Error(Finding::kUsage, "unexpected argument '{}'", Escaped(left.front()))
          .Hint(HintOfUse(app));
    }
  }
  const bool lacks = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  return Error(Finding::kUsage,
               lacks ? RequiredText(error.what(), app, notes) : MismatchText(error.what()))
      .Hint(HintOfUse(app));
}

}  // namespace kv
