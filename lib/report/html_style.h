// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string_view>

namespace kv::report {

// The style rules for pages with verdicts. html.cc adds them to such pages. In html_verdict.cc.
std::string_view VerdictStyle();
// The same for tables, and the script that sorts and filters them. In html_table.cc.
std::string_view TableStyle();
std::string_view TableScript();

}  // namespace kv::report
