// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kv::report {

// One check, as a CI system shows it.
struct JunitTest {
  enum class Outcome { kPassed, kFailed, kSkipped };

  std::string name;
  Outcome outcome = Outcome::kPassed;
  std::string message = {};  // one line that says why it failed or did not run
  std::string details = {};  // further lines: values, place, the command that reproduces it
  std::optional<double> seconds = {};
};

struct JunitSuite {
  std::string name;
  std::vector<JunitTest> tests = {};
};

// Number of tests in a document, which its first line states.
struct JunitCounts {
  size_t tests = 0, failures = 0, skipped = 0;
  void Add(const JunitSuite& suite);
};

// A document in pieces, for suites that are too many to hold: begin, every suite, end.
std::string JunitBegin(std::string_view name, const JunitCounts& counts);
std::string JunitSuiteText(const JunitSuite& suite);
std::string JunitEnd();

// Writes a JUnit XML document with one testsuite per suite and all counts. It contains neither a
// host name nor the current time, so equal results give equal text. Text is escaped here; control
// characters become \xNN.
std::string JunitXml(std::string_view name, const std::vector<JunitSuite>& suites);

}  // namespace kv::report
