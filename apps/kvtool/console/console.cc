// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/console/console.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "apps/kvtool/console/text_width.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/utf8.h"

namespace kv {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

// A terminal has one progress line, whatever draws it, and a signal can find it there.
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

// Leaves what JSON can say.
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

std::string RandomWord() {
  uint64_t value = 0;
  if (::getrandom(&value, sizeof(value), GRND_NONBLOCK) != sizeof(value)) value = 0;
  return fmt::format("{:016x}", value);
}

}  // namespace

std::string JsonText(nlohmann::ordered_json document, int indent, bool ascii) {
  MakeSayable(document);
  return EscapeControls(document.dump(indent, ' ', ascii));
}

Console::Console(Embedding* embedding)
    : embedding_(embedding), style_mark_("\x1b" + RandomWord()) {}

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
  Print(Wrapped(Shown(text), ColumnsOf(STDOUT_FILENO)));
}

void Console::Product(std::string_view text) {
  if (embedding_ != nullptr || verbosity < -1) return;
  Print(Shown(text));
}

void Console::Print(const std::string& shown) {
  if (captured_ != nullptr) return captured_->pieces.push_back({false, shown});
  ClearProgress();
  if (std::fwrite(shown.data(), 1, shown.size(), stdout) != shown.size() && stdout_error_ == 0) {
    stdout_error_ = errno;
  }
}

void Console::Finish() {
  if (std::fflush(stdout) != 0 && stdout_error_ == 0) stdout_error_ = errno;
  // A reader that closed the pipe early (head) is no failure; a full disk behind stdout is.
  if (stdout_error_ == 0 || stdout_error_ == EPIPE) return;
  throw Error(Finding::kWriteFailed, fmt::format("cannot write: {}", std::strerror(stdout_error_)))
      .File("stdout");
}

// This program's own colours pass, whatever else looks like one does not.
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
  std::string text = JsonText(std::move(document));  // in which nothing is left to be escaped
  text += '\n';
  Print(text);
}

void Console::Say(std::string_view text, int level) {
  if (verbosity < level || embedding_ != nullptr) return;
  PrintError(Wrapped(Shown(text), ColumnsOf(STDERR_FILENO)) + "\n");
}

void Console::PrintError(const std::string& shown) {
  if (captured_ != nullptr) return captured_->pieces.push_back({true, shown});
  ClearProgress();
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
  // Where this fails nobody sees the line.
  if (::write(STDERR_FILENO, kClearLine.data(), kClearLine.size()) < 0) return;
}

}  // namespace kv
