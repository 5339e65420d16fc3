// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by command_line.cc, parse_errors.cc

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lib/core/base/error.h"

namespace CLI {
class App;
class Option;
class ParseError;
}  // namespace CLI

namespace kv {

// Headings of options that -h omits: those of every command, and those of many.
inline constexpr const char* kEverywhere = "Everywhere";
inline constexpr const char* kManyInputs = "Many inputs";

// Returns the one of `words` that `word` may mean: ours for a word that other programs have taught,
// or the most similar one; empty if none is near.
std::string MeantWord(std::string_view word, const std::vector<std::string>& words);

// The interface on which commands declare their options. Only this folder includes the parser,
// because a source that includes its header takes seconds more to compile.

// Returns the fault of a value's text; empty if there is none.
using ValueCheck = std::function<std::string(const std::string& text)>;

// A declared option. A handle: copies refer to the same option.
class Option {
 public:
  // Data about an option that the parser does not keep.
  struct Notes {
    std::vector<std::string> words;    // words that completions offer
    bool closed = false;               // true: no other words may be given
    bool needed = false;               // true: required, although the parser does not check it
    bool essential = false;            // always shown by -h
    bool hidden = false;               // true: the option works, but help never shows it
    std::vector<std::string> aliases;  // names with dashes that work but are not shown
    std::string letters;               // short names that the parser does not know
  };
  using WriteNotes = std::map<const CLI::Option*, Notes>;

  Option(CLI::Option* option, WriteNotes* notes) : option_(option), notes_(notes) {}

  Option& Required();
  // Required, unless another option gives the same; the command checks.
  Option& RequiredAlone();
  Option& Group(const std::string& heading);  // heading in the help; "" hides it
  Option& Essential();                        // -h shows it, wherever it is declared
  Option& Hide();                             // no help, manual or completion shows it
  Option& OneOf(const std::vector<std::string>& words);
  Option& Suggest(std::vector<std::string> words);  // words for completions; others may be given
  // Both ends belong to the range.
  Option& Between(int64_t least, int64_t most);
  Option& Positive();
  Option& NonNegative();
  Option& Check(ValueCheck wrong);
  Option& Needs(Option other);
  Option& Excludes(Option other);
  Option& Environment(const std::string& variable);  // read if the option is not given
  Option& Separator(char separator);                 // separator of a list within one word
  Option& KeepAll();                                 // a repeated option makes a list
  Option& Once();                                    // a repeated option is an error
  Option& ShowDefault();
  Option& ValueName(const std::string& name);  // name of the value in the help

 private:
  CLI::Option* option_;
  WriteNotes* notes_;
};

// Description of an option in help, manual pages and completions.
struct OptionDescription {
  std::vector<std::string> names;    // with their dashes; without, the option is positional
  std::vector<std::string> aliases;  // older names, which help, manuals and completions leave out
  std::string value;                 // TEXT, FILE, INT ..., empty for a flag
  std::vector<std::string> words;    // permitted or usual values; empty: any
  bool closed = false;               // true: the value must be one of `words`
  std::string text, group, environment, standard;  // standard: what holds where it is not given
  bool required = false, many = false, essential = false;
  bool listed = false;  // true: one word has several values, separated by commas

  bool positional() const { return !names.front().starts_with('-'); }
};

// The declared options of a command line, without hidden ones.
struct LineDescription {
  std::string name, summary;
  std::vector<OptionDescription> options;
  std::vector<LineDescription> verbs;
};

// The command line of one command, or of one verb of it.
class CommandLine {
 public:
  // Declares -h, --help and --config, as for every command. `program` is shown in its usage.
  explicit CommandLine(const std::string& program);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // `names` is "-o,--output", or "FILE" for a positional argument. Older names follow a '|':
  // "--sample-bytes|--most" is shown as --sample-bytes, and --most keeps its meaning. Parsing
  // writes the value to `variable`, whose type determines the permitted values.
  template <typename T>
  Option Add(const std::string& names, T& variable, const std::string& text = "") {
    return AddBound(names, &variable, text);
  }
  // Adds a flag: sets true, or how often it was given. "--no-x,!--x": the second name unsets it.
  Option AddFlag(const std::string& names, bool& variable, const std::string& text);
  Option AddFlag(const std::string& names, int& variable, const std::string& text);
  Option OnFlag(const std::string& names, std::function<void()> call, const std::string& text);
  // Calls `call` for each value instead of setting a variable.
  Option OnText(const std::string& names, std::function<void(const std::string&)> call,
                const std::string& text);
  Option OnNumber(const std::string& names, std::function<void(const double&)> call,
                  const std::string& text);

  // While this object exists, options are declared below a heading.
  class Heading {
   public:
    Heading(CommandLine& line, const std::string& text);
    ~Heading();

   private:
    CommandLine& line_;
    std::string before_;
  };

  // Adds a verb, which also has options of its own, as in `kvtool trace inspect`.
  CommandLine& AddVerb(std::string_view name, std::string_view summary);
  void RequireVerb();
  bool Has(const std::string& option) const;  // true if the option was declared
  // Must be called last. Requires numbers to be decimal and finite, and counts to be whole.
  void RequireNumbers();

  enum class Asked { kRun, kShortHelp, kLongHelp };
  // Throws kUsage in one line, with a suggestion where a flag or a key looks mistyped.
  Asked Parse(int argc, char** argv);
  bool parsed() const;  // for a verb: true if this verb was given
  // Returns true if the command line or the file sets the option, for the command or its verb.
  bool Given(const std::string& option) const;
  std::string Value(const std::string& option) const;  // from the command line or the environment
  std::string config_file() const;                     // empty if there is none
  // Returns "--threads 4 (from KVTOOL_THREADS)": the options that were set, and where. For -vv.
  std::vector<std::string> Settings() const;

  // Returns "--level high": the options that were set, from any source, without positional ones.
  std::vector<std::string> Parameters() const;

  // Returns the options as given, {"--json=true"}, for another command's command line: without
  // inputs, and without options about their choice and number.
  std::vector<std::string> GivenWords() const;

  LineDescription Describe() const;
  // Returns the verb that was given; null if none was.
  const CommandLine* given_verb() const;
  // Returns a hint that names the help of the command, with its verb.
  std::string HintOfUse() const;

 private:
  using Variable =
      std::variant<std::string*, int*, int64_t*, uint32_t*, uint64_t*, double*, std::optional<int>*,
                   std::optional<uint64_t>*, std::optional<double>*, std::vector<std::string>*,
                   std::vector<uint64_t>*>;

  CommandLine(CLI::App* verb, std::shared_ptr<Option::WriteNotes> notes);
  // Declares with `add`, which gets the names in the parser's syntax.
  template <typename AddTo>
  Option Declared(const std::string& names, AddTo add);
  const CLI::Option* Find(const std::string& option) const;
  Option AddBound(const std::string& names, Variable variable, const std::string& text);

  std::unique_ptr<CLI::App> root_;  // null for a verb, which belongs to its command
  CLI::App* app_;
  std::shared_ptr<Option::WriteNotes> notes_;  // notes of the command and its verbs
  std::vector<std::unique_ptr<CommandLine>> verbs_;
  std::vector<std::string> given_;  // the words that were parsed
};

// Returns the version of the parser's library.
std::string_view ParserVersion();

// Returns what the parser refuses in our words: the fault, what was probably meant, and where to
// read on.
Error ExplainParseError(const CLI::ParseError& error, const CLI::App& app,
                        const Option::WriteNotes& notes, int argc, char** argv);
// Returns a hint that names the help of the given verb.
std::string HintOfUse(const CLI::App& app);
// Returns true for options that no help shows.
bool IsHidden(const CLI::Option& option, const Option::WriteNotes& notes);
// Returns true for older names of an option, which work but are not shown.
bool IsAlias(const CLI::Option& option, const std::string& name, const Option::WriteNotes& notes);

}  // namespace kv
