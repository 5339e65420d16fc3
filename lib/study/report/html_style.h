// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string_view>

namespace kv::report {

// The style rules for pages with verdicts. html.cc adds them to such pages. In html_verdict.cc.
std::string_view VerdictStyle();

}  // namespace kv::report
