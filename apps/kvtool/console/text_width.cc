// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/console/text_width.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "lib/core/base/number.h"

namespace kv {
namespace {

constexpr size_t kUsualColumns = 80, kFewestColumns = 20;

// Where the character, or the escape sequence up to its 'm', that begins here ends.
size_t NextCharacter(std::string_view text, size_t at) {
  if (text[at] == '\x1b') {
    const size_t end = text.find('m', at);
    return end == text.npos ? text.size() : end + 1;
  }
  ++at;
  while (at < text.size() && (text[at] & 0xc0) == 0x80) ++at;
  return at;
}

// "1.5 MiB" is one word.
bool IsUnit(std::string_view word) {
  while (!word.empty() && (word.back() == ',' || word.back() == ';' || word.back() == ')')) {
    word.remove_suffix(1);
  }
  constexpr std::string_view kUnits[] = {"B",  "KiB", "MiB", "GiB", "TiB",   "MiB/s",
                                         "ns", "us",  "ms",  "s",   "bytes", "tokens"};
  return std::find(std::begin(kUnits), std::end(kUnits), word) != std::end(kUnits);
}

// Where the word that begins here ends, with the unit that follows a number.
size_t EndOfWord(std::string_view line, size_t word) {
  const size_t end = std::min(line.find(' ', word), line.size());
  if (end == word || std::isdigit(static_cast<unsigned char>(line[end - 1])) == 0) return end;
  const size_t next = std::min(line.find(' ', std::min(end + 1, line.size())), line.size());
  return end < line.size() && IsUnit(line.substr(end + 1, next - end - 1)) ? next : end;
}

void AppendWrapped(std::string_view line, size_t width, size_t hanging, std::string& out) {
  const size_t indent = std::min(line.find_first_not_of(' '), line.size());
  // Text that is indented beyond the middle would have no room left.
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

}  // namespace

size_t ColumnsOf(int descriptor) {
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

}  // namespace kv
