// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <string_view>

namespace kv {

// The length of the first code point of a text, 1 to 4 bytes; 0 if it is not UTF-8, which excludes
// overlong forms, surrogates and code points above U+10FFFF. The text must not be empty.
size_t Utf8Length(std::string_view text);
bool IsUtf8(std::string_view text);

}  // namespace kv
