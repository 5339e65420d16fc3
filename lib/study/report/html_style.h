// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string_view>

namespace kv::report {

// Rules of pages that judge, added to a page that does. For html.cc.
std::string_view VerdictStyle();

}  // namespace kv::report
