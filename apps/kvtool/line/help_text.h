// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtool/line/command_line.h"

namespace kv {

// "FILE", "auto|always|never": what stands for the value of an option; empty for a flag.
std::string ValueText(const OptionDescription& option);
// What an option does, with the words it takes, its default and its variable where the text of the
// option does not name them.
std::string FullText(const OptionDescription& option);

// Usage, arguments, options by their headings, and verbs, `width` columns wide. The headings in
// `left_out` are not shown.
std::string OptionsHelp(const std::string& program, const LineDescription& line, size_t width,
                        const std::vector<std::string_view>& left_out);

}  // namespace kv
