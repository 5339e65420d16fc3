// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kv::report {

// One check, as a CI shows it.
struct JunitTest {
  enum class Outcome { kPassed, kFailed, kSkipped };

  std::string name;
  Outcome outcome = Outcome::kPassed;
  std::string message = {};  // one line: why it failed or did not run
  std::string details = {};  // lines below it: values, place, the command that reproduces it
  std::optional<double> seconds = {};
};

struct JunitSuite {
  std::string name;
  std::vector<JunitTest> tests = {};
};

// A JUnit XML document: one testsuite per suite, counts filled in. No host name and no time of its
// own: the same text for the same results. Text is escaped here, control characters as \xNN.
std::string JunitXml(std::string_view name, const std::vector<JunitSuite>& suites);

}  // namespace kv::report
