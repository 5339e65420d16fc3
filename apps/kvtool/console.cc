// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/console.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lib/core/base/bytes.h"
#include "lib/core/base/utf8.h"

namespace kv {
namespace {

bool Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

// Cells count as columns by code points: good enough for the characters this program prints.
size_t Width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

bool LooksNumeric(std::string_view cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 ||
                           ((cell[0] == '-' || cell[0] == '+') && cell.size() < 12));
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
  bool sayable = true;
  for (const auto& [key, child] : value.items()) sayable &= IsUtf8(key);
  if (sayable) return;
  nlohmann::ordered_json renamed = nlohmann::ordered_json::object();
  for (auto& [key, child] : value.items()) {
    renamed[IsUtf8(key) ? key : AsUtf8(key)] = std::move(child);
  }
  value = std::move(renamed);
}

// Terminals take some characters of Unicode for commands, which JSON need not escape.
std::string WithoutC1(const std::string& json) {
  std::string out;
  for (size_t at = 0; at < json.size(); ++at) {
    const auto byte = static_cast<unsigned char>(json[at]);
    const auto next = at + 1 < json.size() ? static_cast<unsigned char>(json[at + 1]) : 0u;
    if (byte == 0x7f) {
      out += "\\u007f";
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {
      out += fmt::format("\\u{:04x}", next);
      ++at;
    } else {
      out += json[at];
    }
  }
  return out;
}

std::string RandomWord() {
  uint64_t value = 0;
  if (::getrandom(&value, sizeof(value), GRND_NONBLOCK) != sizeof(value)) value = 0;
  return fmt::format("{:016x}", value);
}

}  // namespace

std::string JsonText(const nlohmann::ordered_json& document, int indent, bool ascii) {
  nlohmann::ordered_json sayable = document;
  MakeSayable(sayable);
  return WithoutC1(sayable.dump(indent, ' ', ascii));
}

Console::Console(Embedding* embedding)
    : embedding_(embedding), style_mark_("\x1b" + RandomWord()) {}

void Console::Data(std::string_view text) {
  if (embedding_ != nullptr) return;
  ClearProgress();
  const std::string shown = Shown(text);
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

void Console::Line(std::string_view text) {
  Data(text);
  Data("\n");
}

void Console::Json(const nlohmann::ordered_json& document) {
  if (embedding_ != nullptr) return embedding_->Document(document);
  Line(JsonText(document));
}

void Console::Say(std::string_view text, int level) {
  if (verbosity < level || embedding_ != nullptr) return;
  ClearProgress();
  const std::string shown = Shown(text) + "\n";
  std::fwrite(shown.data(), 1, shown.size(), stderr);
}

void Console::Warn(std::string_view file, std::string_view text) {
  ++warnings_;
  warning_texts_.push_back(file.empty() ? std::string(text) : fmt::format("{}: {}", file, text));
  if (embedding_ != nullptr) embedding_->Warning(warning_texts_.back());
  Say(fmt::format("kvtool: {}{}warning: {}", Printable(file), file.empty() ? "" : ": ",
                  Printable(text)));
}

void Console::Report(const Error& error) {
  if (embedding_ != nullptr) embedding_->Failure(error);
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

void Console::ClearProgress() {
  if (!progress_drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  progress_drawn_ = false;
}

void Table::Row(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Text(std::string_view indent) const {
  std::vector<size_t> widths;
  std::vector<bool> numeric;
  for (size_t r = 0; r < rows_.size(); ++r) {
    widths.resize(std::max(widths.size(), rows_[r].size()));
    numeric.resize(widths.size(), true);
    for (size_t c = 0; c < rows_[r].size(); ++c) {
      widths[c] = std::max(widths[c], Width(rows_[r][c]));
      if (r > 0 && !rows_[r][c].empty() && !LooksNumeric(rows_[r][c])) numeric[c] = false;
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line(indent);
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - Width(row[c]), ' ');
      if (c > 0) line += "  ";
      line += numeric[c] ? padding + row[c] : row[c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string HumanBytes(uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (value /= 1024; value >= 1023.95 && unit + 1 < kUnits.size(); value /= 1024) ++unit;
  return fmt::format("{:.{}f} {}", value, value < 10 ? 3 : value < 100 ? 2 : 1, kUnits[unit]);
}

std::string HumanRate(uint64_t bytes, double seconds) {
  if (seconds <= 0) return "-";
  const double rate = static_cast<double>(bytes) / seconds / 1e6;
  return fmt::format("{:.{}f} MB/s", rate, rate < 10 ? 2 : rate < 100 ? 1 : 0);
}

std::string HumanSeconds(double seconds) {
  if (seconds < 1e-6) return fmt::format("{:.0f} ns", seconds * 1e9);
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string HumanRatio(uint64_t original, uint64_t stored) {
  if (stored == 0) return "-";
  const double ratio = static_cast<double>(original) / static_cast<double>(stored);
  return fmt::format("{:.3f}x ({:.1f}% removed)", ratio, 100 * (1 - 1 / ratio));
}

void PutRatio(nlohmann::ordered_json& object, uint64_t original, uint64_t stored) {
  if (original == 0 || stored == 0) {
    object["ratio"] = nullptr;
    object["removed_fraction"] = nullptr;
    return;
  }
  object["ratio"] = static_cast<double>(original) / static_cast<double>(stored);
  object["removed_fraction"] = 1 - static_cast<double>(stored) / static_cast<double>(original);
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

}  // namespace kv
