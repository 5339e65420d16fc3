// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/line/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"

namespace kv {
namespace {

// A device or a pipe may have no end, and the parser takes quadratic time for some texts.
class BoundedConfig : public CLI::ConfigTOML {
 public:
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    constexpr size_t kMostBytes = 64 << 10;
    std::string text(kMostBytes + 1, '\0');
    input.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (static_cast<size_t>(input.gcount()) > kMostBytes) {
      throw Error(Finding::kConfig, "--config: the file is larger than 64 KiB")
          .Hint("KVTOOL_CONFIG names it where no --config is given");
    }
    text.resize(static_cast<size_t>(input.gcount()));
    std::istringstream bounded(std::move(text));
    return CLI::ConfigTOML::from_config(bounded);
  }
};

// Numbers on the command line are decimal and finite, and whole for counts: no NaN, no infinity, no
// octal or hexadecimal, nothing truncated. These functions return the fault of a text, or nothing.
// Whole numbers must fit 64 bits, because the parser silently replaces larger ones by the largest.
std::string WrongWhole(std::string_view text, bool is_signed) {
  if ((ParseNumber<int64_t>(text) || ParseNumber<uint64_t>(text)) &&
      (is_signed || text.front() != '-'))
    return {};
  return fmt::format("'{}' is not a whole number{}", Escaped(text, 40), is_signed ? "" : " from 0");
}

// Turns "-007" into "-7", because the parser would read numbers with a leading zero as octal.
std::string WithoutLeadingZeros(std::string text) {
  const size_t sign = text.front() == '-' ? 1 : 0;
  const size_t first = std::min(text.find_first_not_of('0', sign), text.size() - 1);
  return text.erase(sign, first - sign);
}

std::string WrongReal(std::string_view text) {
  if (const auto value = ParseNumber<double>(text); value && std::isfinite(*value)) return {};
  return fmt::format("'{}' is not a finite number", Escaped(text, 40));
}

CLI::Validator WholeNumber(bool is_signed) {
  return {[is_signed](std::string& text) {
            std::string wrong = WrongWhole(text, is_signed);
            if (wrong.empty()) text = WithoutLeadingZeros(text);
            return wrong;
          },
          std::string()};
}

CLI::Validator RealNumber() {
  return {[](std::string& text) { return WrongReal(text); }, std::string()};
}

// Uses one wording for all versions of the parser: 2.4 would print "not in range [1 - 16]" and 2.1
// "not in range 1 to 16".
CLI::Validator InRange(int64_t least, int64_t most) {
  const CLI::Range range(least, most);
  CLI::Validator validator = range;
  return validator.operation([range, least, most](std::string& text) {
    return range(text).empty() ? std::string()
                               : fmt::format("Value {} not in range {} to {}", text, least, most);
  });
}

// Applies environment variables that the parser ignored. CLI11 2.4 ignores a variable whose value
// it would refuse on the command line; here the value is passed as an option and refused.
void TakeEnvironment(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->count() != 0 || option->get_envname().empty()) continue;
    if (option == app.get_config_ptr()) continue;  // the config file has been read already
    const char* value = std::getenv(option->get_envname().c_str());
    if (value == nullptr || *value == '\0') continue;
    option->add_result(value);
    option->run_callback();
  }
  for (CLI::App* verb : app.get_subcommands()) TakeEnvironment(*verb);
}

void RequireNumbersIn(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type.starts_with("INT")) option->transform(WholeNumber(true));
    if (type.starts_with("UINT")) option->transform(WholeNumber(false));
    if (type.starts_with("FLOAT")) option->transform(RealNumber());
  }
  for (CLI::App* child : app.get_subcommands(nullptr)) RequireNumbersIn(*child);
}

// Returns the placeholder of a value: "INT" of "UINT:INT in [0 - 1024]". Readers see INT for all
// whole numbers, signed or not.
std::string ValueWord(const CLI::Option& option) {
  if (option.get_expected_max() == 0 || option.get_type_size() == 0) return {};
  const std::string type = option.get_type_name();
  const std::string word = type.empty() ? "TEXT" : type.substr(0, type.find(':'));
  if (word == "UINT") return "INT";
  return word == "FLOAT" ? "NUMBER" : word;
}

OptionDescription DescribeForHelp(const CLI::Option& option, const Option::WriteNotes& notes) {
  OptionDescription description;
  if (const auto found = notes.find(&option); found != notes.end()) {
    for (const char letter : found->second.letters)
      description.names.push_back(std::string("-") + letter);
  }
  for (const std::string& name : option.get_snames()) description.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) {
    const bool is_alias = IsAlias(option, "--" + name, notes);
    (is_alias ? description.aliases : description.names).push_back("--" + name);
  }
  if (description.names.empty()) description.names.push_back(option.get_name(true));
  description.value = ValueWord(option);
  if (description.value == "TEXT" && description.names.back().ends_with("-out")) {
    description.value = "FILE";
  }
  if (const auto found = notes.find(&option); found != notes.end()) {
    description.words = found->second.words;
    description.closed = found->second.closed;
  }
  description.text = option.get_description();
  description.group = option.get_group();
  description.environment = option.get_envname();
  description.standard = option.get_default_str();
  const auto noted = notes.find(&option);
  const bool is_noted = noted != notes.end();
  description.required = option.get_required() || (is_noted && noted->second.needed);
  description.essential = description.required || (is_noted && noted->second.essential);
  description.many = option.get_expected_max() > 1;
  description.listed = option.get_delimiter() != '\0';
  return description;
}

LineDescription DescribeForHelp(const CLI::App& app, const Option::WriteNotes& notes) {
  LineDescription line{app.get_name(), app.get_description(), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (!IsHidden(*option, notes)) line.options.push_back(DescribeForHelp(*option, notes));
  }
  for (const CLI::App* verb : app.get_subcommands(nullptr)) {
    line.verbs.push_back(DescribeForHelp(*verb, notes));
  }
  return line;
}

// Returns true if one of the words names the option: "--level", "--level=max", "-T4", "-fv".
bool IsNamed(const CLI::Option& option, const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    if (word.starts_with("--")) {
      const std::string name = word.substr(2, word.find('=') - 2);
      const std::vector<std::string>& names = option.get_lnames();
      return std::find(names.begin(), names.end(), name) != names.end();
    }
    return word.starts_with('-') &&
           std::any_of(option.get_snames().begin(), option.get_snames().end(),
                       [&](const std::string& name) { return word.find(name, 1) != word.npos; });
  });
}

void AddSettings(const CLI::App& app, const std::vector<std::string>& words,
                 std::vector<std::string>& lines) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string name = "--" + option->get_lnames().front();
    if (option->count() == 0) {
      const std::string standard = option->get_default_str();
      if (!standard.empty()) lines.push_back(fmt::format("{} {} (default)", name, standard));
      continue;
    }
    std::string value;
    if (option->get_expected_max() > 0) {
      for (const std::string& one : option->results()) value += " " + one;
    }
    const char* variable =
        option->get_envname().empty() ? nullptr : std::getenv(option->get_envname().c_str());
    const std::string origin = IsNamed(*option, words) ? "command line"
                               : variable != nullptr   ? "from " + option->get_envname()
                                                       : "configuration file";
    lines.push_back(fmt::format("{}{} ({})", name, value, origin));
  }
  for (const CLI::App* verb : app.get_subcommands()) AddSettings(*verb, words, lines);
}

// Returns "-o,--output|--out,!--no-out" in the parser's syntax, and the older names separately.
std::string ParserNames(const std::string& names, std::vector<std::string>& aliases) {
  const size_t bar = names.find('|');
  if (bar == names.npos) return names;
  const std::string older = names.substr(bar + 1);
  for (const std::string_view name : Split(older, ','))
    aliases.emplace_back(name.substr(name.starts_with('!') ? 1 : 0));
  return names.substr(0, bar) + "," + older;
}

// Removes short names from `names` whose letter is a long name of another option, as -v and --v:
// CLI11 2.4 treats them as one name and refuses the second.
std::string TakeLetters(const CLI::App& app, std::string& names) {
  std::string letters, others;
  std::istringstream parts(names);
  for (std::string part; std::getline(parts, part, ',');) {
    const bool is_short = part.size() == 2 && part[0] == '-' && part[1] != '-';
    if (is_short && app.get_option_no_throw("-" + part) != nullptr) {
      letters += part[1];
    } else {
      others += (others.empty() ? "" : ",") + part;
    }
  }
  names = others;
  return letters;
}

// Returns the words with long names in place of the letters that the parser does not know. In a
// bundle such as -qv every letter must be a flag: the last of -ov is a value.
std::vector<std::string> WithLongNames(const CLI::App& app, const Option::WriteNotes& notes,
                                       std::vector<std::string> words) {
  std::map<char, std::string> long_names;
  for (const CLI::Option* option : app.get_options()) {
    const auto found = notes.find(option);
    if (found == notes.end() || option->get_lnames().empty()) continue;
    for (const char letter : found->second.letters)
      long_names[letter] = "--" + option->get_lnames().front();
  }
  const auto is_flag = [&](char letter) {
    const CLI::Option* option = app.get_option_no_throw(std::string("-") + letter);
    return long_names.contains(letter) || (option != nullptr && option->get_expected_max() == 0);
  };
  std::vector<std::string> all;
  for (auto word = words.begin(); word != words.end(); ++word) {
    if (*word == "--") {
      all.insert(all.end(), word, words.end());
      break;
    }
    const std::string letters = word->starts_with('-') ? word->substr(1) : std::string();
    const bool is_bundle = std::any_of(letters.begin(), letters.end(),
                                       [&](char letter) { return long_names.contains(letter); }) &&
                           std::all_of(letters.begin(), letters.end(), is_flag);
    if (!is_bundle) {
      all.push_back(*word);
      continue;
    }
    for (const char letter : letters) {
      const auto found = long_names.find(letter);
      all.push_back(found != long_names.end() ? found->second : std::string("-") + letter);
    }
  }
  return all;
}

}  // namespace

Option& Option::Required() {
  option_->required();
  return *this;
}

Option& Option::RequiredAlone() {
  (*notes_)[option_].needed = true;
  return *this;
}

Option& Option::Group(const std::string& heading) {
  option_->group(heading);
  return *this;
}

Option& Option::Essential() {
  (*notes_)[option_].essential = true;
  return *this;
}

Option& Option::Hide() {
  (*notes_)[option_].hidden = true;
  return *this;
}

Option& Option::OneOf(const std::vector<std::string>& words) {
  option_->check(CLI::IsMember(words));
  (*notes_)[option_].closed = true;
  return Suggest(words);
}

Option& Option::Suggest(std::vector<std::string> words) {
  (*notes_)[option_].words = std::move(words);
  return *this;
}

Option& Option::Between(int64_t least, int64_t most) {
  option_->check(InRange(least, most));
  return *this;
}

Option& Option::Positive() {
  return Check([](const std::string& text) {
    const bool is_good = ParseNumber<double>(text).value_or(0) > 0;
    return is_good ? "" : fmt::format("{}: must be above 0", text);
  });
}

Option& Option::NonNegative() {
  return Check([](const std::string& text) {
    const bool is_good = ParseNumber<double>(text).value_or(-1) >= 0;
    return is_good ? "" : fmt::format("{}: must not be negative", text);
  });
}

Option& Option::Check(ValueCheck wrong) {
  option_->check(CLI::Validator(
      [wrong = std::move(wrong)](std::string& text) { return wrong(text); }, std::string()));
  return *this;
}

Option& Option::Needs(Option other) {
  option_->needs(other.option_);
  return *this;
}

Option& Option::Excludes(Option other) {
  option_->excludes(other.option_);
  return *this;
}

Option& Option::Environment(const std::string& variable) {
  option_->envname(variable);
  return *this;
}

// A list takes one word, however many could follow, because the next may be an input.
Option& Option::Separator(char separator) {
  option_->delimiter(separator)->allow_extra_args(false);
  return *this;
}

Option& Option::KeepAll() {
  option_->take_all()->allow_extra_args(false);
  return *this;
}

Option& Option::Once() {
  option_->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  return *this;
}

Option& Option::ShowDefault() {
  option_->capture_default_str();
  return *this;
}

Option& Option::ValueName(const std::string& name) {
  option_->type_name(name);
  return *this;
}

CommandLine::CommandLine(const std::string& program)
    : root_(std::make_unique<CLI::App>("", program)),
      app_(root_.get()),
      notes_(std::make_shared<Option::WriteNotes>()) {
  app_->set_help_flag("-h", "Short help with examples")->group(kEverywhere);
  app_->set_help_all_flag("--help", "All options")->group(kEverywhere);
  // CLI11 reads the variable only after the file.
  const char* config = std::getenv("KVTOOL_CONFIG");
  app_->set_config("--config", config == nullptr ? "" : config,
                   "Read option defaults from a file (TOML or INI)")
      ->type_name("FILE")
      ->envname("KVTOOL_CONFIG")
      ->group(kEverywhere);
  app_->config_formatter(std::make_shared<BoundedConfig>());
  app_->allow_config_extras(CLI::config_extras_mode::error);  // fails on misspelt keys
  app_->option_defaults()->take_last();
}

CommandLine::CommandLine(CLI::App* verb, std::shared_ptr<Option::WriteNotes> notes)
    : app_(verb), notes_(std::move(notes)) {}

CommandLine::~CommandLine() = default;

template <typename AddTo>
Option CommandLine::Declared(const std::string& names, AddTo add) {
  std::vector<std::string> aliases;
  std::string parser_names = ParserNames(names, aliases);
  std::string letters = TakeLetters(*app_, parser_names);
  CLI::Option* option = add(parser_names);
  (*notes_)[option].aliases = std::move(aliases);
  (*notes_)[option].letters = std::move(letters);
  return {option, notes_.get()};
}

Option CommandLine::AddBound(const std::string& names, Variable variable, const std::string& text) {
  return Declared(names, [&](const std::string& all) {
    return std::visit([&](auto* to) { return app_->add_option(all, *to, text); }, variable);
  });
}

Option CommandLine::AddFlag(const std::string& names, bool& variable, const std::string& text) {
  return Declared(names,
                  [&](const std::string& all) { return app_->add_flag(all, variable, text); });
}

Option CommandLine::AddFlag(const std::string& names, int& variable, const std::string& text) {
  return Declared(names,
                  [&](const std::string& all) { return app_->add_flag(all, variable, text); });
}

Option CommandLine::OnFlag(const std::string& names, std::function<void()> call,
                           const std::string& text) {
  return Declared(names, [&](const std::string& all) {
    return app_->add_flag_callback(all, std::move(call), text);
  });
}

Option CommandLine::OnText(const std::string& names, std::function<void(const std::string&)> call,
                           const std::string& text) {
  return Declared(names, [&](const std::string& all) {
    return app_->add_option_function(all, std::move(call), text);
  });
}

Option CommandLine::OnNumber(const std::string& names, std::function<void(const double&)> call,
                             const std::string& text) {
  return Declared(names, [&](const std::string& all) {
    return app_->add_option_function(all, std::move(call), text);
  });
}

CommandLine::Heading::Heading(CommandLine& line, const std::string& text)
    : line_(line), before_(line.app_->option_defaults()->get_group()) {
  line_.app_->option_defaults()->group(text);
}

CommandLine::Heading::~Heading() { line_.app_->option_defaults()->group(before_); }

CommandLine& CommandLine::AddVerb(std::string_view name, std::string_view summary) {
  CLI::App* verb = app_->add_subcommand(std::string(name), std::string(summary));
  verb->fallthrough();  // a verb also takes the options of its command
  verb->set_help_flag("-h", "Short help with examples")->group(kEverywhere);
  verb->set_help_all_flag("--help", "All options")->group(kEverywhere);
  return *verbs_.emplace_back(new CommandLine(verb, notes_));
}

void CommandLine::RequireVerb() { app_->require_subcommand(1); }

bool CommandLine::Has(const std::string& option) const {
  return app_->get_option_no_throw(option) != nullptr;
}

std::vector<std::string> CommandLine::Settings() const {
  std::vector<std::string> lines;
  AddSettings(*app_, given_, lines);
  return lines;
}

std::vector<std::string> CommandLine::Parameters() const {
  std::vector<std::string> parameters;
  for (const CLI::Option* option : app_->get_options()) {
    if (option->get_lnames().empty() || option->count() == 0) continue;
    std::string text = "--" + option->get_lnames().front();
    for (const std::string& value : option->results()) {
      if (option->get_expected_max() > 0) text += " " + value;
    }
    parameters.push_back(std::move(text));
  }
  return parameters;
}

std::vector<std::string> CommandLine::GivenWords() const {
  std::vector<std::string> words;
  for (const CLI::Option* option : app_->get_options()) {
    const bool is_option = !option->get_lnames().empty() && option->get_group() != kManyInputs;
    if (!is_option || !IsNamed(*option, given_)) continue;
    for (const std::string& value : option->results())
      words.push_back(fmt::format("--{}={}", option->get_lnames().front(), value));
  }
  return words;
}

void CommandLine::RequireNumbers() { RequireNumbersIn(*app_); }

CommandLine::Asked CommandLine::Parse(int argc, char** argv) {
  given_ = WithLongNames(*app_, *notes_, {argv, argv + argc});
  const std::vector<CLI::App*> verbs = app_->get_subcommands(nullptr);
  const bool has_only_verb = verbs.size() == 1 && argc > 1 && *argv[1] != '-';
  // A command with one verb may leave it out.
  if (has_only_verb && MeantWord(argv[1], {verbs.front()->get_name()}).empty())
    given_.insert(given_.begin() + 1, verbs.front()->get_name());
  std::vector<const char*> words;
  for (const std::string& word : given_) words.push_back(word.c_str());
  try {
    app_->parse(static_cast<int>(words.size()), words.data());
    TakeEnvironment(*app_);
    return Asked::kRun;
  } catch (const CLI::CallForHelp&) {
    return Asked::kShortHelp;
  } catch (const CLI::CallForAllHelp&) {
    return Asked::kLongHelp;
  } catch (const CLI::ParseError& error) {
    throw ExplainParseError(error, *app_, *notes_, argc, argv);
  }
}

bool CommandLine::parsed() const { return app_->parsed(); }

const CLI::Option* CommandLine::Find(const std::string& option) const {
  const CLI::Option* own = app_->get_option_no_throw(option);
  if (own != nullptr) return own;
  for (const auto& verb : verbs_) {
    if (verb->parsed()) return verb->Find(option);
  }
  return nullptr;
}

bool CommandLine::Given(const std::string& option) const {
  const CLI::Option* found = Find(option);
  return found != nullptr && found->count() > 0;
}

std::string CommandLine::Value(const std::string& option) const {
  const CLI::Option* found = Find(option);
  return found != nullptr && found->count() > 0 ? found->results().back() : std::string();
}

std::string CommandLine::config_file() const {
  const CLI::Option* config = app_->get_config_ptr();
  return config->count() > 0 ? config->as<std::string>() : std::string();
}

LineDescription CommandLine::Describe() const { return DescribeForHelp(*app_, *notes_); }

std::string CommandLine::HintOfUse() const { return kv::HintOfUse(*app_); }

const CommandLine* CommandLine::given_verb() const {
  for (const auto& verb : verbs_) {
    if (verb->parsed()) return verb.get();
  }
  return nullptr;
}

std::string_view ParserVersion() { return CLI11_VERSION; }

}  // namespace kv
