// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>
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

}  // namespace kv
