// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
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

// Who runs commands inside a program of its own gets here what they would print.
class Embedding {
 public:
  virtual ~Embedding() = default;
  virtual void Document(const nlohmann::ordered_json& document) = 0;
  virtual void Warning(const std::string& text) = 0;
  virtual void Failure(const Error& error) = 0;
  // Bytes of work; any thread. May throw kCancelled.
  virtual void Progress(uint64_t done, uint64_t total) = 0;
};
class Console;
struct DocumentKind;

// A failure as documents have it.
const Fields<Error>& ErrorFields();
nlohmann::ordered_json ErrorJson(const Error& error);

constexpr int kJsonVersion = 2;
constexpr const char* kJsonVersionVariable = "KVTOOL_JSON_VERSION";
// Why documents of a version cannot be had; empty if they can.
std::string WrongJsonVersion(std::string_view version);

// A document as a command makes it, as an element of "results".
nlohmann::ordered_json ResultOf(nlohmann::ordered_json made);

// The JSON document of one run of the program. Its envelope says how the run ended, so it is held
// back until that is known, and is made even if there is nothing else to say.
class RunDocument {
 public:
  // What the words ask for, as long as nobody has parsed them.
  void Guess(int argc, char** argv);
  void Name(const DocumentKind* kind);  // null: the words name none
  // What the command line asks for.
  void Take(const CommandLine& line);
  // Nothing is asked for: help was.
  void Drop();

  // Documents as commands make them; printed if `print`, and written to `path` and their rows to
  // `csv` where these are not empty.
  void Hold(nlohmann::ordered_json made, bool print, const std::string& path,
            const std::string& csv, const OutputRules& rules);
  void Failed(const Error& error) { failures_.push_back(error); }
  // At the end, each once; what is printed says whether writing has failed.
  void Write(ExitStatus status, Console& console);
  void Print(ExitStatus status, Console& console);

 private:
  nlohmann::ordered_json Envelope(ExitStatus status, const Console& console,
                                  nlohmann::ordered_json results) const;

  std::string name_ = "failure";  // of the command's documents; none: the line was wrong before
  bool print_ = false;
  std::string path_, csv_;
  OutputRules rules_;
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
  std::vector<Error> failures_;
};

enum class When { kAuto, kAlways, kNever, kJson };

// What the run of one input among many has to say, kept until its turn comes.
struct CapturedRun {
  struct Piece {
    bool is_error;
    std::string text;
  };
  std::vector<Piece> pieces;
  std::vector<std::string> warnings;
  std::vector<Error> failures;
  nlohmann::ordered_json document;  // as the command made it; null: none
  OutputRules rules;                // for writing it
};

// The two streams of the program: data on stdout, talk on stderr. All output of commands goes
// through here. With an embedding nothing reaches a stream.
class Console {
 public:
  explicit Console(Embedding* embedding = nullptr);
  // For a run whose output `captured` takes, in the manner of `like`.
  Console(const Console& like, CapturedRun& captured);

  // -qq .. -vv: -2 exit status only, -1 errors only, 0 normal, 1 and 2 more.
  int verbosity = 0;
  When colour = When::kAuto;
  std::string command_line;    // of the run, as a shell takes it
  bool only_products = false;  // standard output is for a program: what is for people is left out

  // What comes from files and names is shown with control characters as \xNN; of a name, newlines,
  // too, where the caller passes it through Printable.
  void Data(std::string_view text);  // stdout, for people: wrapped on a terminal, nothing with -q
  void Line(std::string_view text);  // the same, with a newline
  // stdout, for programs, and what was asked for as such: lines as they are, nothing with -qq.
  void Product(std::string_view text);
  void Rows(const std::string& text);              // CSV whose cells are escaped already
  void Json(nlohmann::ordered_json document);      // a product; non-finite numbers are null
  void Say(std::string_view text, int level = 0);  // stderr, from this verbosity on
  void Warn(std::string_view file, std::string_view text);
  void Report(const Error& error);
  // Hands stdout what was printed, so that what goes to stderr next stands behind it, and not
  // within a line, where both are one file.
  void FlushData();
  // Call at the end: what was printed has reached stdout, or nobody reads it any more. Throws
  // kWriteFailed.
  void Finish();
  // The JSON document of the run, for which reported failures are noted.
  RunDocument& document() { return document_; }

  // Says what a captured run had to say, with `tables` on stdout, too. The document stays.
  void Replay(const CapturedRun& run, bool tables = true);

  Embedding* embedding() const { return embedding_; }
  CapturedRun* captured() const { return captured_; }
  int warnings() const { return warnings_; }
  const std::vector<std::string>& warning_texts() const { return warning_texts_; }

  bool stdout_is_terminal() const;
  bool stderr_is_terminal() const;
  bool utf8() const;  // whether stdout can show block characters
  std::string Bold(std::string_view text) const;
  // A verdict word: green or red on a terminal, plain otherwise.
  std::string Verdict(bool good, std::string_view text) const;
  // The progress line of the terminal: whether one is drawn, and its end, also before anything else
  // is printed.
  void set_progress_drawn(bool drawn);
  void ClearProgress();
  // The same from the handler of a signal that ends the program. Async-signal-safe.
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
  std::string style_mark_;  // what only this program's own colours begin with
  int stdout_error_ = 0;
  RunDocument document_;
};

// Columns padded to their widest cell; numbers (and a leading '-') are right-aligned. On a terminal
// that is too narrow heads take several lines and columns of text are shortened; where that is not
// enough, the table becomes several, or each row becomes lines of its own.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  explicit Table(const TextTable& table);
  void Row(std::vector<std::string> cells);
  std::string Text(std::string_view indent = "") const;  // as wide as standard output is
  std::string TextFor(size_t width, std::string_view indent = "") const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// {"schema": "kvtool.NAME/1", "tool": {...}}: how every file of JSON begins, and what tells a run
// the name of its document.
nlohmann::ordered_json ReportHeader(std::string_view name);
// Writes a whole text, if `path` names a file.
void WriteText(const std::string& path, std::string_view text, const OutputRules& rules);

// How wide text may be. A pipe or a file takes lines of any length, so that nothing a script reads
// depends on a window.
constexpr size_t kAnyWidth = static_cast<size_t>(-1);

// Columns of the terminal behind a descriptor, kAnyWidth if there is none. A terminal that does not
// say is as wide as COLUMNS says, or 80.
size_t ColumnsOf(int descriptor);

// Columns that text takes: code points, which is right for the characters this program prints.
// Escape sequences take none.
size_t ColumnsIn(std::string_view text);

// Breaks lines longer than `width` at spaces; a word that is longer stays whole. What follows a
// break is indented as the line is, and by `hanging` more. Spaces within a line stay as they are.
std::string Wrapped(std::string_view text, size_t width, size_t hanging = 2);

// The text cut to `width` columns, with an ellipsis at its end.
std::string Shortened(std::string_view text, size_t width);

// A document as it is printed and written: non-finite numbers are null. A string that is not UTF-8,
// such as a file name, has its wrong bytes as \xNN and its backslashes doubled.
std::string JsonText(nlohmann::ordered_json document, int indent = 2, bool ascii = false);

// "1.234 MiB", IEC units, 4 significant digits.
std::string HumanBytes(uint64_t bytes);
// "12.3 MiB/s".
std::string HumanRate(uint64_t bytes, double seconds);
// Adaptive: ns, us, ms, s.
std::string HumanSeconds(double seconds);
// "8 s", "3 min 20 s", "2 h 05 min": whole seconds at the least, for what is yet to come.
std::string HumanTimeLeft(double seconds);
// "3.11x (67.8% removed)"; ratio = original / stored.
std::string HumanRatio(uint64_t original, uint64_t stored);
// "1 layer", "3 layers".
using format::Plural;
// Blocks on UTF-8 terminals, ASCII otherwise; values in [0, 1].
std::string Sparkline(const std::vector<double>& values, bool utf8);

}  // namespace kv
