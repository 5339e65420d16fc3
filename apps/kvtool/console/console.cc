// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The two streams of the program, the JSON document of a run, and the widths and wrapping of text.
#include "apps/kvtool/console/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/line/command_line.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/number.h"
#include "lib/core/base/system.h"
#include "lib/core/base/utf8.h"
#include "lib/fields/value.h"
#include "version.h"

namespace kv {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

// 1 while a progress line is drawn. A terminal has only one, whichever object draws it, and a
// signal handler needs to find it.
volatile std::sig_atomic_t progress_drawn = 0;

bool Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

std::string AsUtf8(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = Utf8Length(text.substr(at));
    if (length == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
    } else if (text[at] == '\\') {
      out += "\\\\";
    } else {
      out += text.substr(at, length);
    }
    at += std::max<size_t>(length, 1);
  }
  return out;
}

// Replaces values that JSON cannot express.
void MakeSayable(nlohmann::ordered_json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) value = nullptr;
  if (value.is_string()) {
    auto& text = value.get_ref<std::string&>();
    if (!IsUtf8(text)) text = AsUtf8(text);
  }
  if (value.is_structured()) {
    for (auto& child : value) MakeSayable(child);
  }
  if (!value.is_object()) return;
  auto& members = value.get_ref<nlohmann::ordered_json::object_t&>();
  if (std::all_of(members.begin(), members.end(),
                  [](const auto& member) { return IsUtf8(member.first); }))
    return;
  nlohmann::ordered_json renamed = nlohmann::ordered_json::object();
  for (auto& [key, child] : members) {
    renamed[IsUtf8(key) ? key : AsUtf8(key)] = std::move(child);
  }
  value = std::move(renamed);
}

std::string FindName(const nlohmann::ordered_json& made) {
  const std::string schema = made["schema"];
  return schema.substr(schema.find('.') + 1, schema.find('/') - schema.find('.') - 1);
}

// Returns "layer 3 K" of "FILE: layer 3 K: MESSAGE (offset 0x10) [KV1001]".
std::string ListContext(const Error& error) {
  std::string_view line = error.what();
  if (!error.file().empty() && line.starts_with(Printable(error.file()) + ": ")) {
    line.remove_prefix(Printable(error.file()).size() + 2);
  }
  const size_t at = line.find(Printable(error.message()));
  return at == line.npos || at < 2 ? std::string() : std::string(line.substr(0, at - 2));
}

constexpr size_t kUsualColumns = 80, kFewestColumns = 20;

// Returns the end of the character that begins here, or of the escape sequence up to its 'm'.
size_t NextCharacter(std::string_view text, size_t at) {
  if (text[at] == '\x1b') {
    const size_t end = text.find('m', at);
    return end == text.npos ? text.size() : end + 1;
  }
  ++at;
  while (at < text.size() && (text[at] & 0xc0) == 0x80) ++at;
  return at;
}

// Returns true for units: "1.5 MiB" stays on one line.
bool IsUnit(std::string_view word) {
  while (!word.empty() && (word.back() == ',' || word.back() == ';' || word.back() == ')')) {
    word.remove_suffix(1);
  }
  constexpr std::string_view kUnits[] = {"B",  "KiB", "MiB", "GiB", "TiB",   "MiB/s",
                                         "ns", "us",  "ms",  "s",   "bytes", "tokens"};
  return std::find(std::begin(kUnits), std::end(kUnits), word) != std::end(kUnits);
}

// Returns the end of the word that begins here, including the unit after a number.
size_t EndOfWord(std::string_view line, size_t word) {
  const size_t end = std::min(line.find(' ', word), line.size());
  if (end == word || std::isdigit(static_cast<unsigned char>(line[end - 1])) == 0) return end;
  const size_t next = std::min(line.find(' ', std::min(end + 1, line.size())), line.size());
  return end < line.size() && IsUnit(line.substr(end + 1, next - end - 1)) ? next : end;
}

void AppendWrapped(std::string_view line, size_t width, size_t hanging, std::string& out) {
  const size_t indent = std::min(line.find_first_not_of(' '), line.size());
  // Text that is indented beyond the middle would leave too little room.
  const size_t further = std::min(indent + hanging, width / 2);
  size_t column = 0;
  for (size_t at = 0; at < line.size();) {
    const size_t word = std::min(line.find_first_not_of(' ', at), line.size());
    const size_t end = EndOfWord(line, word);
    const size_t spaces = word - at, columns = ColumnsIn(line.substr(word, end - word));
    if (at > 0 && column + spaces + columns > width && column > further) {
      out += '\n';
      out.append(further, ' ');
      column = further;
    } else {
      out.append(spaces, ' ');
      column += spaces;
    }
    out += line.substr(word, end - word);
    column += columns;
    at = end;
  }
}

// Splits a command into words, keeping their quotes.
std::vector<std::string> SplitWords(const std::string& command) {
  std::vector<std::string> words(1);
  bool quoted = false, escapes = false;
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (c == ' ' && !quoted) {
      words.emplace_back();
      continue;
    }
    words.back() += c;
    if (c == '\\' && (escapes || !quoted) && i + 1 < command.size()) {
      words.back() += command[++i];
    } else if (c == '\'') {
      quoted = !quoted;
      escapes = quoted && i > 0 && command[i - 1] == '$';
    }
  }
  return words;
}

}  // namespace

std::string JsonText(nlohmann::ordered_json document, int indent, bool ascii) {
  MakeSayable(document);
  return EscapeControls(document.dump(indent, ' ', ascii));
}

Console::Console(Embedding* embedding)
    : embedding_(embedding), style_mark_(fmt::format("\x1b{:016x}", sys::Random())) {}

Console::Console(const Console& like, CapturedRun& captured)
    : verbosity(like.verbosity),
      colour(like.colour),
      command_line(like.command_line),
      only_products(like.only_products),
      embedding_(nullptr),
      captured_(&captured),
      style_mark_(like.style_mark_) {}

void Console::Replay(const CapturedRun& run, bool tables) {
  for (const std::string& warning : run.warnings) {
    ++warnings_;
    warning_texts_.push_back(warning);
    if (embedding_ != nullptr) embedding_->Warning(warning);
  }
  for (const Error& failure : run.failures) {
    document_.Failed(failure);
    if (embedding_ != nullptr) embedding_->Failure(failure);
  }
  if (embedding_ != nullptr) return;
  for (const CapturedRun::Piece& piece : run.pieces) {
    if (piece.is_error) PrintError(piece.text);
    if (!piece.is_error && tables) Print(piece.text);
  }
}

void Console::Data(std::string_view text) {
  if (embedding_ != nullptr || verbosity < 0 || only_products) return;
  Print(Wrapped(Shown(text), TerminalColumns(STDOUT_FILENO)));
}

void Console::Product(std::string_view text) {
  if (embedding_ != nullptr || verbosity < -1) return;
  Print(Shown(text));
}

void Console::Rows(const std::string& text) {
  if (embedding_ == nullptr && verbosity >= -1) Print(text);
}

void Console::Print(const std::string& shown) {
  if (captured_ != nullptr) return captured_->pieces.push_back({false, shown});
  ClearProgress();
  if (std::fwrite(shown.data(), 1, shown.size(), stdout) != shown.size() && stdout_error_ == 0) {
    stdout_error_ = errno;
  }
}

void Console::FlushData() {
  if (std::fflush(stdout) != 0 && stdout_error_ == 0) stdout_error_ = errno;
}

void Console::Finish() {
  FlushData();
  // It is no failure if a reader closes the pipe early (head); a full disk behind stdout is.
  if (stdout_error_ == 0 || stdout_error_ == EPIPE) return;
  throw Error(Finding::kWriteFailed, "cannot write: {}", std::strerror(stdout_error_))
      .File("stdout");
}

// Keeps this program's own colours and escapes everything else that resembles one.
std::string Console::Shown(std::string_view text) const {
  std::string out;
  for (size_t at = 0; at <= text.size();) {
    const size_t mark = std::min(text.find(style_mark_, at), text.size());
    out += Printable(text.substr(at, mark - at), true);
    if (mark == text.size()) break;
    out += '\x1b';
    at = mark + style_mark_.size();
    const size_t end = text.find('m', at);
    out += text.substr(at, end + 1 - at);
    at = end + 1;
  }
  return out;
}

std::string Console::Styled(std::string_view code, std::string_view text) const {
  if (!UseColour()) return Printable(text);
  return fmt::format("{0}[{1}m{2}{0}[0m", style_mark_, code, Printable(text));
}

void Console::Line(std::string_view text) { Data(fmt::format("{}\n", text)); }

void Console::Json(nlohmann::ordered_json document) {
  if (embedding_ != nullptr) return embedding_->Document(document);
  if (verbosity < -1) return;
  std::string text = JsonText(std::move(document));  // JSON text needs no further escaping
  text += '\n';
  Print(text);
}

void Console::Say(std::string_view text, int level) {
  if (verbosity < level || embedding_ != nullptr) return;
  PrintError(Wrapped(Shown(text), TerminalColumns(STDERR_FILENO)) + "\n");
}

void Console::PrintError(const std::string& shown) {
  if (captured_ != nullptr) return captured_->pieces.push_back({true, shown});
  ClearProgress();
  FlushData();
  std::fwrite(shown.data(), 1, shown.size(), stderr);
}

void Console::Warn(std::string_view file, std::string_view text) {
  ++warnings_;
  warning_texts_.push_back(file.empty() ? std::string(text) : fmt::format("{}: {}", file, text));
  if (embedding_ != nullptr) embedding_->Warning(warning_texts_.back());
  if (captured_ != nullptr) captured_->warnings.push_back(warning_texts_.back());
  Say(fmt::format("kvtool: {}{}warning: {}", Printable(file), file.empty() ? "" : ": ",
                  Printable(text)));
}

void Console::Report(const Error& error) {
  if (embedding_ != nullptr) embedding_->Failure(error);
  if (captured_ != nullptr) captured_->failures.push_back(error);
  document_.Failed(error);
  if (verbosity < -1) return;
  Say(fmt::format("kvtool: {}", error.what()), -1);
  if (!error.hint().empty()) Say(fmt::format("hint: {}", Printable(error.hint())), -1);
}

bool Console::stdout_is_terminal() const {
  return embedding_ == nullptr && ::isatty(STDOUT_FILENO) != 0;
}
bool Console::stderr_is_terminal() const {
  return embedding_ == nullptr && ::isatty(STDERR_FILENO) != 0;
}

bool Console::utf8() const {
  if (!stdout_is_terminal()) return false;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (!Environment(name)) continue;
    const std::string value = std::getenv(name);
    return value.find("UTF-8") != value.npos || value.find("utf8") != value.npos;
  }
  return false;
}

bool Console::UseColour() const {
  if (colour != When::kAuto) return colour == When::kAlways;
  if (Environment("NO_COLOR")) return false;
  if (Environment("CLICOLOR_FORCE")) return true;
  const char* term = std::getenv("TERM");
  return stdout_is_terminal() && term != nullptr && std::string_view(term) != "dumb";
}

std::string Console::Bold(std::string_view text) const { return Styled("1", text); }

std::string Console::Verdict(bool good, std::string_view text) const {
  return Styled(good ? "32" : "31", text);
}

void Console::set_progress_drawn(bool drawn) { progress_drawn = drawn ? 1 : 0; }

void Console::ClearProgress() {
  if (progress_drawn == 0) return;
  std::fputs(kClearLine.data(), stderr);
  progress_drawn = 0;
}

void Console::ClearProgressOnSignal() {
  if (progress_drawn == 0) return;
  // If this fails the line was not visible anyway.
  if (::write(STDERR_FILENO, kClearLine.data(), kClearLine.size()) < 0) return;
}

nlohmann::ordered_json ReportHeader(std::string_view name) {
  nlohmann::ordered_json document;
  document["schema"] = fmt::format("kvtool.{}/1", name);
  document["tool"] = {{"name", "kvtool"}, {"version", KVTOOL_VERSION}, {"git", kBuildCommit}};
  return document;
}

void WriteText(const std::string& path, std::string_view text, const OutputRules& rules) {
  if (path.empty()) return;
  AtomicFile file(path, rules);
  file.Write(AsBytes(text));
  file.Commit();
}

const Fields<Error>& ErrorFields() {
  static const Fields<Error> fields = {
      {"finding", "Number of the finding; 'kvtool explain KV1001' documents KV1001",
       [](const Error& error) { return FindingId(error.finding()); }, kFindingNumber},
      {"exit_code", "The exit status that this failure alone would give",
       [](const Error& error) { return static_cast<int>(ExitStatusFor(error.code())); }},
      {"file", "File that the finding is in",
       [](const Error& error) { return IfAny(error.file()); }},
      {"context", "The part of the file, such as \"layer 3 K\"",
       [](const Error& error) { return IfAny(ListContext(error)); }},
      {"message", "The error in words", &Error::message},
      {"offset", "Offset in the file, in bytes", &Error::offset},
      {"hint", "What the user can do", [](const Error& error) { return IfAny(error.hint()); }},
      {"text", "The whole line on standard error, without the program's name",
       [](const Error& error) { return std::string_view(error.what()); }}};
  return fields;
}

nlohmann::ordered_json ErrorJson(const Error& error) { return ToJson(ErrorFields().Object(error)); }

const FieldTable& FailureFields() {
  struct Nothing {};
  static const Fields<Nothing> fields = {NoInputs<Nothing>()};
  return fields;
}

std::string WrongJsonVersion(std::string_view version) {
  if (version == std::to_string(kJsonVersion)) return {};
  const std::string which = version == "1" ? "version 1 of JSON documents ended after kvtool 0.2.0"
                                           : fmt::format("'{}'", Escaped(version));
  return fmt::format("{}; version {} is the only one, and the option can be left out", which,
                     kJsonVersion);
}

nlohmann::ordered_json TakeResult(nlohmann::ordered_json made) {
  nlohmann::ordered_json result = {{"inputs", nlohmann::ordered_json::array()}};
  for (auto& [key, value] : made.items()) {
    if (key != "schema" && key != "tool") result[key] = std::move(value);
  }
  return result;
}

void RunDocument::Guess(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") return;
    if (word == "--json") print_ = true;
  }
}

void RunDocument::Name(const DocumentKind* kind) {
  if (kind != nullptr) name_ = kind->name;
}

void RunDocument::Take(const CommandLine& line) { print_ = line.Given("--json"); }

void RunDocument::Drop() { print_ = false; }

void RunDocument::Hold(nlohmann::ordered_json made, bool print, const std::string& path,
                       const std::string& csv, const OutputRules& rules) {
  if (!made.is_array()) made = nlohmann::ordered_json::array({std::move(made)});
  for (nlohmann::ordered_json& one : made) {
    name_ = FindName(one);
    results_.push_back(TakeResult(std::move(one)));
  }
  print_ = print;
  path_ = path;
  csv_ = csv;
  rules_ = rules;
}

nlohmann::ordered_json RunDocument::Envelope(ExitStatus status, const Console& console,
                                             nlohmann::ordered_json results) const {
  nlohmann::ordered_json document = ReportHeader(name_);
  document["schema"] = fmt::format("kvtool.{}/{}", name_, kJsonVersion);
  document["exit_code"] = static_cast<int>(status);
  document["errors"] = nlohmann::ordered_json::array();
  for (const Error& error : failures_) document["errors"].push_back(ErrorJson(error));
  document["warnings"] = console.warning_texts();
  document["results"] = std::move(results);
  return document;
}

void RunDocument::Write(ExitStatus status, Console& console) {
  if (!path_.empty()) {
    WriteText(path_, JsonText(Envelope(status, console, results_)) + "\n", rules_);
  }
  if (csv_.empty()) return;
  const std::string rows = Csv(RowTable(DocumentNamed(name_)->fields(), FromJson(results_)));
  if (DescriptorNamed(csv_) == STDOUT_FILENO) return console.Rows(rows);
  WriteText(csv_, rows, rules_);
}

void RunDocument::Print(ExitStatus status, Console& console) {
  if (print_)
    console.Json(
        Envelope(status, console, std::exchange(results_, nlohmann::ordered_json::array())));
}

// Formats numbers for people.
std::string HumanBytes(uint64_t bytes) { return format::Bytes(bytes); }

std::string HumanRate(uint64_t bytes, double seconds) {
  if (seconds <= 0) return "-";
  const double rate = static_cast<double>(bytes) / seconds / (1 << 20);
  return fmt::format("{:.{}f} MiB/s", rate, rate < 10 ? 2 : rate < 100 ? 1 : 0);
}

std::string HumanSeconds(double seconds) {
  if (seconds < 1e-6) return fmt::format("{:.0f} ns", seconds * 1e9);
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string HumanTimeLeft(double seconds) {
  constexpr double kMost = 359'999;  // longer times are shown as 99 h 59 min
  const auto whole = static_cast<uint64_t>(std::clamp(std::ceil(seconds), 0.0, kMost));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string HumanRatio(uint64_t original, uint64_t stored) {
  if (stored == 0) return "-";
  const double ratio = static_cast<double>(original) / static_cast<double>(stored);
  if (ratio < 1) return fmt::format("{:.3f}x ({:.1f}% added)", ratio, 100 * (1 / ratio - 1));
  return fmt::format("{:.3f}x ({:.1f}% removed)", ratio, 100 * (1 - 1 / ratio));
}

std::string Sparkline(const std::vector<double>& values, bool utf8) {
  constexpr std::array<const char*, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr std::array<const char*, 8> kAscii = {"_", ".", "-", "~", "=", "+", "*", "#"};
  std::string line;
  for (double value : values) {
    const auto step = static_cast<size_t>(std::clamp(value, 0.0, 1.0) * 7.999);
    line += (utf8 ? kBlocks : kAscii)[step];
  }
  return line;
}

// Returns widths of text.
size_t TerminalColumns(int descriptor) {
  if (::isatty(descriptor) == 0) return kAnyWidth;
  struct winsize window = {};
  size_t columns = 0;
  if (::ioctl(descriptor, TIOCGWINSZ, &window) == 0) columns = window.ws_col;
  if (columns == 0) {
    const char* told = std::getenv("COLUMNS");
    if (told != nullptr) columns = ParseNumber<size_t>(told).value_or(0);
  }
  return columns == 0 ? kUsualColumns : std::max(columns, kFewestColumns);
}

size_t ColumnsIn(std::string_view text) {
  size_t columns = 0;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '\x1b') ++columns;
    at = NextCharacter(text, at);
  }
  return columns;
}

std::string Wrapped(std::string_view text, size_t width, size_t hanging) {
  if (width == kAnyWidth) return std::string(text);
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (ColumnsIn(line) <= width) {
      out += line;
    } else {
      AppendWrapped(line, width, hanging, out);
    }
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

std::string Shortened(std::string_view text, size_t width) {
  if (ColumnsIn(text) <= width) return std::string(text);
  constexpr std::string_view kEllipsis = "...";
  const size_t room = width > kEllipsis.size() ? width - kEllipsis.size() : width;
  size_t at = 0;
  for (size_t columns = 0; columns < room; ++columns) at = NextCharacter(text, at);
  std::string out(text.substr(0, at));
  return width > kEllipsis.size() ? out + std::string(kEllipsis) : out;
}

std::string BrokenCommand(const std::string& command, size_t width) {
  if (ColumnsIn(command) <= width) return command;
  constexpr std::string_view kMore = " \\";
  std::string text, line;
  for (const std::string& word : SplitWords(command)) {
    if (!line.empty() && ColumnsIn(line) + 1 + ColumnsIn(word) + kMore.size() > width) {
      text += line + std::string(kMore) + "\n";
      line = "   ";
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return text + line;
}

}  // namespace kv
