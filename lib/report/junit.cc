// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/report/junit.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/report/svg.h"

namespace kv::report {
namespace {

// Escapes for an attribute, where a line end would be read as a blank.
std::string Attribute(std::string_view text) {
  std::string line(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return EscapeMarkup(line);
}

// Escapes for an element's text, which keeps its line ends.
std::string Content(std::string_view text) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += (begin > 0 ? "\n" : "") + EscapeMarkup(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

size_t CountOutcomes(const JunitSuite& suite, JunitTest::Outcome outcome) {
  return static_cast<size_t>(
      std::count_if(suite.tests.begin(), suite.tests.end(),
                    [&](const JunitTest& test) { return test.outcome == outcome; }));
}

std::string Time(const std::optional<double>& seconds) {
  return seconds ? fmt::format(" time=\"{:.6f}\"", *seconds) : std::string();
}

std::string TestText(const JunitSuite& suite, const JunitTest& test) {
  const std::string open =
      fmt::format("    <testcase classname=\"{}\" name=\"{}\"{}", Attribute(suite.name),
                  Attribute(test.name), Time(test.seconds));
  if (test.outcome == JunitTest::Outcome::kPassed && test.details.empty()) return open + "/>\n";
  std::string body;
  if (test.outcome == JunitTest::Outcome::kPassed) {
    body = fmt::format("<system-out>{}</system-out>", Content(test.details));
  } else if (test.outcome == JunitTest::Outcome::kSkipped) {
    body = fmt::format("<skipped message=\"{}\"/>", Attribute(test.message));
  } else {
    body = fmt::format("<failure message=\"{}\">{}</failure>", Attribute(test.message),
                       Content(test.details));
  }
  return fmt::format("{}>\n      {}\n    </testcase>\n", open, body);
}

}  // namespace

void JunitCounts::Add(const JunitSuite& suite) {
  tests += suite.tests.size();
  failures += CountOutcomes(suite, JunitTest::Outcome::kFailed);
  skipped += CountOutcomes(suite, JunitTest::Outcome::kSkipped);
}

std::string JunitBegin(std::string_view name, const JunitCounts& counts) {
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"{}\" tests=\"{}\" "
      "failures=\"{}\" errors=\"0\" skipped=\"{}\">\n",
      Attribute(name), counts.tests, counts.failures, counts.skipped);
}

std::string JunitSuiteText(const JunitSuite& suite) {
  JunitCounts counts;
  counts.Add(suite);
  std::string text = fmt::format(
      "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\">\n",
      Attribute(suite.name), counts.tests, counts.failures, counts.skipped);
  for (const JunitTest& test : suite.tests) text += TestText(suite, test);
  return text + "  </testsuite>\n";
}

std::string JunitEnd() { return "</testsuites>\n"; }

std::string JunitXml(std::string_view name, const std::vector<JunitSuite>& suites) {
  JunitCounts counts;
  for (const JunitSuite& suite : suites) counts.Add(suite);
  std::string text = JunitBegin(name, counts);
  for (const JunitSuite& suite : suites) text += JunitSuiteText(suite);
  return text + JunitEnd();
}

}  // namespace kv::report
