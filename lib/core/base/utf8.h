// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kv {

// The length of the first code point of a text, 1 to 4 bytes; 0 if it is not UTF-8, which excludes
// overlong forms, surrogates and code points above U+10FFFF. The text must not be empty.
size_t Utf8Length(std::string_view text);
bool IsUtf8(std::string_view text);

// The length of a character that changes how a terminal or a page shows others, if the text begins
// with one; else 0. These are control characters (C0, DEL, C1), the marks, overrides and isolates
// of writing direction, line and paragraph separators, and U+FFFE and U+FFFF, which XML forbids.
size_t ControlLength(std::string_view text);
// Escapes those that a JSON text holds as they are: JSON itself asks for C0 alone.
std::string EscapeControls(std::string json);
// The code point of one character, which must be UTF-8.
uint32_t CodePoint(std::string_view character);

// The word that the user probably meant: the nearest of `words` if it is near enough, else empty.
std::string Nearest(std::string_view word, std::span<const std::string> words);

// A name that people read with spaces, as the word that programs compare: "npy set" is npy_set in
// documents.
inline std::string WithUnderscores(std::string_view text) {
  std::string word(text);
  std::replace(word.begin(), word.end(), ' ', '_');
  return word;
}

// "s" behind the name of what there are several of.
inline std::string_view PluralEnding(uint64_t count) { return count == 1 ? "" : "s"; }

// True if `word` is one of those in `list`, between which one space stands.
bool HasWord(std::string_view list, std::string_view word);

// Makes untrusted text safe to print: control characters (ControlLength in utf8.h) and bytes
// that are not UTF-8 become \xNN, all else stays. Newlines stay only if `lines` is set.
std::string Printable(std::string_view text, bool lines = false);

// The same for short excerpts: also makes non-ASCII bytes \xNN and cuts after `limit` bytes.
std::string Escaped(std::string_view text, size_t limit = 200);

}  // namespace kv
