// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "lib/study/gate/summary_view.h"
#include "lib/study/report/junit.h"

namespace kv::gate {
namespace {

using report::JunitSuite;
using report::JunitTest;

JunitTest::Outcome OutcomeOf(Verdict verdict) {
  if (verdict == Verdict::kPass) return JunitTest::Outcome::kPassed;
  return verdict == Verdict::kFail ? JunitTest::Outcome::kFailed : JunitTest::Outcome::kSkipped;
}

std::string Limit(const RuleView& rule) {
  if (rule.limit) return fmt::format(" {} {:.6g}", rule.op, *rule.limit);
  return rule.flag_limit ? fmt::format(" {} {}", rule.op, *rule.flag_limit) : std::string();
}

JunitTest TestOf(const RuleView& rule) {
  JunitTest test;
  test.name = rule.metric + Limit(rule);
  test.outcome = OutcomeOf(rule.verdict);
  test.message = rule.Sentence();
  if (!rule.reason.empty() && rule.reason != test.message) test.message += ": " + rule.reason;
  if (rule.verdict != Verdict::kFail) return test;
  if (rule.value) test.details += fmt::format("value: {:.9g}\n", *rule.value);
  if (rule.limit) test.details += fmt::format("limit: {} {:.9g}\n", rule.op, *rule.limit);
  if (rule.baseline) test.details += fmt::format("baseline: {:.9g}\n", *rule.baseline);
  if (!rule.where.empty()) test.details += "where: " + rule.where + "\n";
  if (rule.engine_value) {
    test.details += fmt::format("the engine says: {:.9g}\n", *rule.engine_value);
  }
  if (!rule.reproduce.empty()) test.details += "reproduce: " + rule.reproduce + "\n";
  return test;
}

}  // namespace

std::string SummaryJunit(const Summary& summary, Engines engines) {
  const SummaryView view = ViewOf(summary, engines);
  std::vector<JunitSuite> suites;
  for (const CaseView& c : view.cases) {
    JunitSuite suite{c.name};
    bool shown = false;
    for (const RuleView& rule : c.rules) {
      suite.tests.push_back(TestOf(rule));
      shown |= rule.verdict == c.verdict;
    }
    // What no rule explains: a case without rules, or one that failed on its own.
    if (!shown) {
      suite.tests.push_back({std::string("case"), OutcomeOf(c.verdict), c.reason, c.reason});
      if (c.verdict == Verdict::kPass) suite.tests.back().details.clear();
    }
    suites.push_back(std::move(suite));
  }
  if (!view.pass && view.Count(Verdict::kFail) == 0) {
    const std::string reason = view.reason.empty() ? "no case passed" : view.reason;
    suites.push_back({"gate", {{"verdict", JunitTest::Outcome::kFailed, reason, reason}}});
  }
  return report::JunitXml("kvtool gate", suites);
}

}  // namespace kv::gate
