// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kv {

// Returns the length of the first code point of a text, 1 to 4 bytes; 0 if it is not UTF-8, which
// excludes overlong forms, surrogates and code points above U+10FFFF. The text must not be empty.
size_t Utf8Length(std::string_view text);
bool IsUtf8(std::string_view text);

// Returns the length of the first character if it changes how a terminal or a page shows others,
// otherwise 0. These are control characters (C0, DEL, C1), the marks, overrides and isolates of
// writing direction, line and paragraph separators, and U+FFFE and U+FFFF, which XML forbids.
size_t ControlLength(std::string_view text);
// Escapes those control characters that JSON permits unescaped: JSON itself requires it only for
// C0.
std::string EscapeControls(std::string json);
// Returns the code point of one character, which must be UTF-8.
uint32_t CodePoint(std::string_view character);

// Returns the word that the user probably meant: the nearest of `words` if it is near enough,
// otherwise an empty text.
std::string Nearest(std::string_view word, std::span<const std::string> words);

// Quotes a word for a shell if necessary.
inline std::string ShellQuoted(const std::string& word) {
  constexpr std::string_view kPlain = "_-+=./,:@%";
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kPlain.find(c) != kPlain.npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// Replaces spaces by underscores, as in JSON documents: "npy set" becomes npy_set.
inline std::string WithUnderscores(std::string_view text) {
  std::string word(text);
  std::replace(word.begin(), word.end(), ' ', '_');
  return word;
}

// Returns the plural ending "s" unless the count is 1.
inline std::string_view PluralEnding(uint64_t count) { return count == 1 ? "" : "s"; }

// Returns true if `word` is one of the words in `list`, which are separated by single spaces.
bool HasWord(std::string_view list, std::string_view word);

// Returns the parts between separators; the part of an empty text is empty.
std::vector<std::string_view> Split(std::string_view text, char separator);

// Returns a text without the blanks at its ends.
std::string_view Trimmed(std::string_view text, std::string_view blanks = " \t\r\n");

// These change ASCII letters only.
inline char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
std::string Lower(std::string_view text);
bool ContainsIgnoringCase(std::string_view text, std::string_view part);

// Makes untrusted text safe to print: control characters (ControlLength) and bytes that are not
// UTF-8 become \xNN. Newlines stay only if `lines` is set.
std::string Printable(std::string_view text, bool lines = false);

// Does as Printable for short excerpts: also escapes non-ASCII bytes and cuts after `limit` bytes.
std::string Escaped(std::string_view text, size_t limit = 200);

}  // namespace kv
