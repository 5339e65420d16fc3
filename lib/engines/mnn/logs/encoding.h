// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>

namespace kv::mnn::logs {

// Converts a log to UTF-8. A shell's redirection may have written it as UTF-16 of either byte
// order, with or without a byte order mark, or switched encodings within the file. The result has
// no zero bytes, so that searches for words find them; all other bytes stay as they are.
std::string LogText(std::string_view bytes);

}  // namespace kv::mnn::logs
