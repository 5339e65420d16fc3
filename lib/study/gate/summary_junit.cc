// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <cmath>

#include "lib/report/junit.h"
#include "lib/study/gate/summary_view.h"

namespace kv::gate {
namespace {

using report::JunitSuite;
using report::JunitTest;

JunitTest::Outcome OutcomeOf(Status status) {
  if (status == Status::kPass) return JunitTest::Outcome::kPassed;
  return status == Status::kFail ? JunitTest::Outcome::kFailed : JunitTest::Outcome::kSkipped;
}

std::string LimitText(const Rule& rule) {
  if (std::isnan(rule.limit)) return {};
  if (rule.is_flag) return fmt::format(" {} {}", Name(rule.op), rule.limit != 0);
  return fmt::format(" {} {:.6g}", Name(rule.op), rule.limit);
}

JunitTest TestOf(const RuleOutcome& rule) {
  JunitTest test;
  test.name = rule.rule.shown() + LimitText(rule.rule);
  test.outcome = OutcomeOf(rule.status);
  test.message = Sentence(rule);
  if (!rule.reason.empty() && rule.reason != test.message) test.message += ": " + rule.reason;
  if (rule.status != Status::kFail) return test;
  const bool is_number = !rule.rule.is_flag;
  if (rule.value && is_number) test.details += fmt::format("value: {:.9g}\n", *rule.value);
  if (!std::isnan(rule.rule.limit) && is_number) {
    test.details += fmt::format("limit: {} {:.9g}\n", Name(rule.rule.op), rule.rule.limit);
  }
  if (rule.baseline) test.details += fmt::format("baseline: {:.9g}\n", *rule.baseline);
  if (rule.where.known()) test.details += "where: " + Text(rule.where, true) + "\n";
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
    for (const RuleOutcome& rule : c.rules) {
      suite.tests.push_back(TestOf(rule));
      shown |= rule.status == c.status;
    }
    // What no rule explains: a case without rules, or one that failed on its own.
    if (!shown) {
      suite.tests.push_back({std::string("case"), OutcomeOf(c.status), c.reason, c.reason});
      if (c.status == Status::kPass) suite.tests.back().details.clear();
    }
    suites.push_back(std::move(suite));
  }
  if (!view.pass && view.Count(Status::kFail) == 0) {
    const std::string reason = view.reason.empty() ? "no case passed" : view.reason;
    suites.push_back({"gate", {{"verdict", JunitTest::Outcome::kFailed, reason, reason}}});
  }
  return report::JunitXml("kvtool gate", suites);
}

}  // namespace kv::gate
