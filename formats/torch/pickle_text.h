// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Inside formats/torch: the two text forms of protocol 0.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kv {

// 'a\n\x41' or "..." as Python's repr writes a str. Nothing if it is not one.
std::optional<std::string> UnquotePython(std::string_view text);
// Latin-1 with \uXXXX and \UXXXXXXXX, to UTF-8; nothing if a character is half a surrogate pair.
std::optional<std::string> DecodeRawUnicode(std::string_view text);
// UTF-8 to Latin-1; nothing if a character is outside it or the text is not UTF-8.
std::optional<std::string> Latin1FromUtf8(std::string_view text);
void AppendUtf8(uint32_t code_point, std::string& out);

}  // namespace kv
