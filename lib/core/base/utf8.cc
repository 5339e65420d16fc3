// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace kv {

size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
      (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return length;
}

size_t ControlLength(std::string_view text) {
  const size_t length = Utf8Length(text);
  if (length == 0 || length == 4) return 0;
  const uint32_t code = CodePoint(text.substr(0, length));
  const auto in = [&](uint32_t first, uint32_t last) { return code >= first && code <= last; };
  const bool is_control = code < 0x20 || in(0x7f, 0x9f) || code == 0x61c || in(0x200e, 0x200f) ||
                          in(0x2028, 0x202e) || in(0x2066, 0x2069) || in(0xfffe, 0xffff);
  return is_control ? length : 0;
}

std::string EscapeControls(std::string json) {
  const auto is_suspect = [](char c) { return static_cast<unsigned char>(c) >= 0x7f; };
  if (std::none_of(json.begin(), json.end(), is_suspect)) return json;
  std::string out;
  for (size_t at = 0; at < json.size();) {
    const std::string_view rest = std::string_view(json).substr(at);
    const size_t control = is_suspect(json[at]) ? ControlLength(rest) : 0;
    if (control > 0) {
      out += fmt::format("\\u{:04x}", CodePoint(rest.substr(0, control)));
    } else {
      out += json[at];
    }
    at += std::max<size_t>(control, 1);
  }
  return out;
}

uint32_t CodePoint(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first;
  uint32_t code = first & (0x7fu >> character.size());
  for (const char c : character.substr(1))
    code = code << 6 | (static_cast<unsigned char>(c) & 0x3fu);
  return code;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string Nearest(std::string_view word, std::span<const std::string> words) {
  // Words come from files: a long one is not a typo, and the distance takes quadratic time.
  if (word.size() > 100) return {};
  std::string best;
  // The dashes of an option do not count towards similarity.
  const size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  size_t best_distance = letters / 3 + 2;
  for (const std::string& candidate : words) {
    // A truncated word is nearer than one with changed letters.
    const bool begins = word.size() >= 4 && candidate.substr(0, word.size()) == word;
    const size_t distance = begins ? 1 : EditDistance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string_view Trimmed(std::string_view text, std::string_view blanks) {
  const size_t first = text.find_first_not_of(blanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = Lower(c);
  return lower;
}

bool ContainsIgnoringCase(std::string_view text, std::string_view part) {
  const auto same = [](char a, char b) { return Lower(a) == Lower(b); };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), same) != text.end();
}

bool HasWord(std::string_view list, std::string_view word) {
  if (word.empty() || word.find(' ') != word.npos) return false;
  for (size_t at = list.find(word); at != list.npos; at = list.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || list[at - 1] == ' ') && (end == list.size() || list[end] == ' ')) return true;
  }
  return false;
}

std::string Printable(std::string_view text, bool lines) {
  std::string out;
  while (!text.empty()) {
    const size_t length = Utf8Length(text), control = ControlLength(text);
    const size_t taken = std::max<size_t>(length, 1);
    if (length > 0 && (control == 0 || (lines && text[0] == '\n'))) {
      out += text.substr(0, taken);
    } else {
      for (const char c : text.substr(0, taken)) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    }
    text.remove_prefix(taken);
  }
  return out;
}

std::string Escaped(std::string_view text, size_t limit) {
  std::string out;
  for (char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '\\') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  if (text.size() > limit) out += "...";
  return out;
}

}  // namespace kv
