// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "apps/kvtool/line/command_line.h"

namespace kv {

// Numbers on the command line are decimal and finite, whole where a count is meant: no NaN, no
// infinity, no octal or hexadecimal, nothing cut off. What is wrong with `text` as one; empty if
// nothing is.
std::string WrongWhole(std::string_view text, bool is_signed);
std::string WrongReal(std::string_view text);
// Of a whole number: "-007" is "-7".
std::string WithoutLeadingZeros(std::string text);

// What is wrong with `text` as a value of this parameter of the engine ("h2o_block_tokens",
// "h2o_lossless_front_n"); empty if nothing is, or if its values are words. The engine itself would
// clamp what is refused here, and run something else than was asked for.
std::string WrongParameter(std::string_view meta_name, std::string_view text);
// The same as a check of an option.
ValueCheck ParameterCheck(std::string meta_name);
// Whatever `parse` throws for, so that a list or a size is refused before a file is opened.
ValueCheck CheckedBy(std::function<void(const std::string& text)> parse);

}  // namespace kv
