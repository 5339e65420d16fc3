// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kv {

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

}  // namespace kv
