// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/corpus/merge.h"
#include "lib/report/junit.h"

namespace kv::corpus {
namespace {

using report::JunitSuite;
using report::JunitTest;

JunitTest CaseTest(const CaseVerdict& one, const std::string& command) {
  JunitTest test{one.name};
  if (one.status == "pass") return test;
  test.outcome = one.status == "fail" ? JunitTest::Outcome::kFailed : JunitTest::Outcome::kSkipped;
  test.message = one.text;
  if (one.status == "fail") {
    test.details = one.text + "\nreproduce: " + command + " --case " + one.name + "\n";
  }
  return test;
}

JunitSuite SuiteOf(const Merged& merged, const MergedInput& input) {
  JunitSuite suite{input.name};
  const std::string command = CommandFor(merged, input.name);
  for (const CaseVerdict& one : input.cases) suite.tests.push_back(CaseTest(one, command));
  const bool is_told = std::any_of(suite.tests.begin(), suite.tests.end(), [](const auto& test) {
    return test.outcome == JunitTest::Outcome::kFailed;
  });
  if (!input.cases.empty() && (input.exit_code == 0 || is_told)) return suite;
  // One that no case explains.
  JunitTest test{merged.head.command};
  if (input.exit_code != 0) {
    test.outcome = JunitTest::Outcome::kFailed;
    test.message = !input.text.empty()     ? input.text
                   : !input.reason.empty() ? input.reason
                                           : "verdict: " + input.verdict;
    test.details = test.message + "\nreproduce: " + command + "\n";
  }
  suite.tests.push_back(std::move(test));
  return suite;
}

}  // namespace

void WriteMergedJunit(const Merged& merged, const std::function<void(std::string_view)>& write) {
  report::JunitCounts counts;
  merged.ForEachInput([&](const MergedInput& input) { counts.Add(SuiteOf(merged, input)); });
  write(report::JunitBegin("kvtool merge", counts));
  merged.ForEachInput(
      [&](const MergedInput& input) { write(report::JunitSuiteText(SuiteOf(merged, input))); });
  write(report::JunitEnd());
}

}  // namespace kv::corpus
