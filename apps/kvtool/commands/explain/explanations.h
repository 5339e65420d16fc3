// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lib/core/base/error.h"

namespace kv {

// What `kvtool explain` says of a finding beside what it means.
struct Explanation {
  Finding finding;
  std::string_view why;      // why it matters
  std::string_view what;     // what to do
  std::string_view example;  // lines of a terminal, or of a program for the library's findings
};

const Explanation& ExplanationOf(Finding finding);

// "1001", "KV1001" or "kv1001"; nothing if no finding has the number.
std::optional<FindingInfo> ParseFinding(std::string_view text);

std::string ExplanationText(const FindingInfo& info);

}  // namespace kv
