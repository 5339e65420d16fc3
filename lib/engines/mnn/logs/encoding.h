// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>

namespace kv::mnn::logs {

// A log as UTF-8, whatever the redirection of a shell made of it: UTF-16 of either byte order, with
// or without its mark, or begun in one encoding and continued in another. No byte 0 remains, so
// that words of the log are found in it. Other bytes are left as they are.
std::string LogText(std::string_view bytes);

}  // namespace kv::mnn::logs
