// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

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

void ReplaceNonFinite(nlohmann::ordered_json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) value = nullptr;
  if (value.is_structured()) {
    for (auto& child : value) ReplaceNonFinite(child);
  }
}

}  // namespace

void Console::Data(std::string_view text) {
  ClearProgress();
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void Console::Line(std::string_view text) {
  Data(text);
  Data("\n");
}

void Console::Json(const nlohmann::ordered_json& document) {
  nlohmann::ordered_json finite = document;
  ReplaceNonFinite(finite);
  Line(finite.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void Console::Say(std::string_view text, int level) {
  if (verbosity < level) return;
  ClearProgress();
  std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

void Console::Warn(std::string_view file, std::string_view text) {
  ++warnings_;
  warning_texts_.push_back(file.empty() ? std::string(text) : fmt::format("{}: {}", file, text));
  Say(fmt::format("kvtool: {}{}warning: {}", file, file.empty() ? "" : ": ", text));
}

void Console::Report(const Error& error) {
  if (verbosity < -1) return;
  Say(fmt::format("kvtool: {}", error.what()), -1);
  if (!error.hint().empty()) Say(fmt::format("hint: {}", error.hint()), -1);
}

bool Console::stdout_is_terminal() const { return ::isatty(STDOUT_FILENO) != 0; }
bool Console::stderr_is_terminal() const { return ::isatty(STDERR_FILENO) != 0; }

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

std::string Console::Bold(std::string_view text) const {
  return UseColour() ? fmt::format("\x1b[1m{}\x1b[0m", text) : std::string(text);
}

std::string Console::Verdict(bool good, std::string_view text) const {
  return UseColour() ? fmt::format("\x1b[{}m{}\x1b[0m", good ? "32" : "31", text)
                     : std::string(text);
}

void Console::ClearProgress() {
  if (!progress_drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  progress_drawn_ = false;
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
