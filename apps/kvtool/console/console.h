// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Everything that the program prints goes through here: streams, tables, widths of text, and the
// JSON document of a run.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtool/exit_status.h"
#include "lib/core/base/error.h"
#include "lib/core/base/output.h"
#include "lib/fields/fields.h"

namespace kv {

class CommandLine;
struct TextTable;

// Receives the output of commands in a program that runs them itself.
class Embedding {
 public:
  virtual ~Embedding() = default;
  virtual void Document(const nlohmann::ordered_json& document) = 0;
  virtual void Warning(const std::string& text) = 0;
  virtual void Failure(const Error& error) = 0;
  // Reports bytes of work, from any thread. May throw kCancelled.
  virtual void Progress(uint64_t done, uint64_t total) = 0;
};
class Console;
struct DocumentKind;

// Returns the fields of a failure in documents.
const Fields<Error>& ErrorFields();
nlohmann::ordered_json ErrorJson(const Error& error);

constexpr int kJsonVersion = 2;
constexpr const char* kJsonVersionVariable = "KVTOOL_JSON_VERSION";
// Returns why documents of a version are not available; "" if they are.
std::string WrongJsonVersion(std::string_view version);

// Returns a command's document as an element of "results".
nlohmann::ordered_json TakeResult(nlohmann::ordered_json made);

// The JSON document of one run of the program. Its envelope states how the run ended, so it is held
// back until that is known, and is made even if it has no results.
class RunDocument {
 public:
  // Guesses the requested document from the words, before they are parsed.
  void Guess(int argc, char** argv);
  void Name(const DocumentKind* kind);  // null if the words name no command
  // Takes the requested document from the parsed command line.
  void Take(const CommandLine& line);
  // Drops the request for JSON, because help was requested.
  void Drop();

  // Holds a document. It is printed if `print` is set, and written to the file `path`, if any; its
  // rows are written to the file `csv`, if any.
  void Hold(nlohmann::ordered_json made, bool print, const std::string& path,
            const std::string& csv, const OutputRules& rules);
  void Failed(const Error& error) { failures_.push_back(error); }
  // Writes each document once, at the end; the printed one tells if writing failed.
  void Write(ExitStatus status, Console& console);
  void Print(ExitStatus status, Console& console);

 private:
  nlohmann::ordered_json Envelope(ExitStatus status, const Console& console,
                                  nlohmann::ordered_json results) const;

  // name of the command's documents; "failure" if the line was wrong before there was one
  std::string name_ = "failure";
  bool print_ = false;
  std::string path_, csv_;
  OutputRules rules_;
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
  std::vector<Error> failures_;
};

enum class When { kAuto, kAlways, kNever, kJson };

// Output of one input among many, kept until its turn comes.
struct CapturedRun {
  struct Piece {
    bool is_error;
    std::string text;
  };
  std::vector<Piece> pieces;
  std::vector<std::string> warnings;
  std::vector<Error> failures;
  nlohmann::ordered_json document;  // document of the command; null if it has none
  OutputRules rules;                // formatting rules
};

// The two streams of the program: data on stdout, messages on stderr. All output of commands goes
// through here. With an embedding nothing is written to a stream.
class Console {
 public:
  explicit Console(Embedding* embedding = nullptr);
  // Makes a console whose output goes to `captured`, with the settings of `like`.
  Console(const Console& like, CapturedRun& captured);

  // -qq .. -vv: -2 exit status only, -1 errors only, 0 normal, 1 and 2 more.
  int verbosity = 0;
  When colour = When::kAuto;
  std::string command_line;  // the run's command line, quoted for a shell
  // standard output is read by a program, so text for people is omitted
  bool only_products = false;

  // Texts from files and names are shown with control characters as \xNN; a name's newlines too, if
  // the caller passes it through Printable.
  void Data(std::string_view text);  // stdout, for people: wrapped on a terminal, omitted with -q
  void Line(std::string_view text);  // Data with a newline
  // Writes stdout for programs, and output that was explicitly requested. Lines are not wrapped;
  // with -qq nothing is written.
  void Product(std::string_view text);
  void Rows(const std::string& text);              // CSV with escaped cells
  void Json(nlohmann::ordered_json document);      // the result; NaN and infinities become null
  void Say(std::string_view text, int level = 0);  // stderr, if verbosity is at least `level`
  void Warn(std::string_view file, std::string_view text);
  void Report(const Error& error);
  // Flushes stdout, so that later output on stderr follows it instead of splitting a line, if both
  // go to one file.
  void FlushData();
  // Must be called at the end: afterwards everything printed has reached stdout, or the reader is
  // gone. Throws kWriteFailed.
  void Finish();
  // Returns the JSON document of the run, which records reported failures.
  RunDocument& document() { return document_; }

  // Prints the output of a captured run; with `tables` also its stdout. The document is kept.
  void Replay(const CapturedRun& run, bool tables = true);

  Embedding* embedding() const { return embedding_; }
  CapturedRun* captured() const { return captured_; }
  int warnings() const { return warnings_; }
  const std::vector<std::string>& warning_texts() const { return warning_texts_; }

  bool stdout_is_terminal() const;
  bool stderr_is_terminal() const;
  bool utf8() const;  // true if stdout can show block characters
  std::string Bold(std::string_view text) const;
  // Returns a verdict word: green or red on a terminal, otherwise plain.
  std::string Verdict(bool good, std::string_view text) const;
  // Records whether a progress line is drawn, and clears it before anything else is printed.
  void set_progress_drawn(bool drawn);
  void ClearProgress();
  // Clears the progress line from the handler of a signal that ends the program. Async-signal-safe.
  static void ClearProgressOnSignal();

 private:
  void Print(const std::string& shown);
  void PrintError(const std::string& shown);
  bool UseColour() const;
  std::string Styled(std::string_view code, std::string_view text) const;
  std::string Shown(std::string_view text) const;

  Embedding* embedding_;
  CapturedRun* captured_ = nullptr;
  int warnings_ = 0;
  std::vector<std::string> warning_texts_;
  std::string style_mark_;  // the bytes with which this program's own colours begin
  int stdout_error_ = 0;
  RunDocument document_;
};

// Columns padded to their widest cell; numbers (and a leading '-') are right-aligned. On a terminal
// that is too narrow, headers are wrapped and columns of text are shortened; if that is not enough,
// the table becomes several, or each row becomes a paragraph.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  explicit Table(const TextTable& table);
  void Row(std::vector<std::string> cells);
  std::string Text(std::string_view indent = "") const;  // lines are as wide as standard output
  std::string TextFor(size_t width, std::string_view indent = "") const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Returns {"schema": "kvtool.NAME/1", "tool": {...}}, with which every file of JSON begins, and
// records the name of the run's document.
nlohmann::ordered_json ReportHeader(std::string_view name);
// Writes a whole text if `path` is not empty.
void WriteText(const std::string& path, std::string_view text, const OutputRules& rules);

// Width without limit. Lines in a pipe or a file have any length, so that what a script reads does
// not depend on a window.
constexpr size_t kAnyWidth = static_cast<size_t>(-1);

// Returns the columns of the terminal behind a descriptor, kAnyWidth if there is none. If the
// terminal does not report a width, COLUMNS or 80 is used.
size_t TerminalColumns(int descriptor);

// Returns the columns that text takes: code points, which is right for the characters that this
// program prints. Escape sequences take none.
size_t ColumnsIn(std::string_view text);

// Breaks lines longer than `width` at spaces; a longer word stays whole. Continuation lines are
// indented like the line, plus `hanging`. Spaces within a line are kept.
std::string Wrapped(std::string_view text, size_t width, size_t hanging = 2);

// Breaks a command that is wider than `width` into lines that a shell reads as one.
std::string BrokenCommand(const std::string& command, size_t width);

// Returns the text cut to `width` columns, with an ellipsis at its end.
std::string Shortened(std::string_view text, size_t width);

// Returns a document as text: numbers that are not finite become null. A string that is not UTF-8,
// such as a file name, gets its invalid bytes as \xNN and its backslashes doubled.
std::string JsonText(nlohmann::ordered_json document, int indent = 2, bool ascii = false);

// Returns "1.234 MiB", IEC units, 4 significant digits.
std::string HumanBytes(uint64_t bytes);
// Returns "12.3 MiB/s".
std::string HumanRate(uint64_t bytes, double seconds);
// Returns a time in ns, us, ms or s, whichever fits.
std::string HumanSeconds(double seconds);
// Returns "8 s", "3 min 20 s", "2 h 05 min": a remaining time in whole seconds or longer units.
std::string HumanTimeLeft(double seconds);
// Returns "3.11x (67.8% removed)"; ratio = original / stored.
std::string HumanRatio(uint64_t original, uint64_t stored);
// Returns "1 layer", "3 layers".
using format::Plural;
// Returns blocks on UTF-8 terminals, otherwise ASCII; values are in [0, 1].
std::string Sparkline(const std::vector<double>& values, bool utf8);

}  // namespace kv
