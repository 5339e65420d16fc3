// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <string_view>

namespace kv {

// Bytes of the code point that a text begins with, 1 to 4; 0 if they are no UTF-8: overlong forms,
// surrogates and what lies beyond U+10FFFF are none. The text is not empty.
size_t Utf8Length(std::string_view text);
bool IsUtf8(std::string_view text);

}  // namespace kv
