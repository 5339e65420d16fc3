// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>

namespace kv {

// What help says of a parameter that an engine defines.
struct ParameterText {
  std::string_view name;   // the engine's own
  std::string_view value;  // INT, NUMBER, TEXT; empty: a switch
  std::string_view text;
  // With its dashes, where it is not the engine's name with dashes; what follows a '|' are aliases.
  std::string_view flag = {};
};

// Of the engine's lossless runtime and of its H2O beside it, by the names of its configuration.
const ParameterText& RuntimeParameterText(std::string_view name);
// Of the analyzer that judges the engine's logs.
const ParameterText& AnalyzerOptionText(std::string_view name);

// Returns the names to declare a parameter by, "--hot-sink|--hot-sink-tokens,...". `prefix` begins
// the engine's names, which work as well, and not the flags.
std::string FlagNames(const ParameterText& parameter, std::string_view prefix);

}  // namespace kv
