// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/study/gate/judge.h"
#include "lib/study/gate/summary.h"
#include "tests/support/engines.h"

namespace kv::gate::annotations_test {
namespace {

GateResult Judged(size_t rules) {
  GateResult gate = test::NewGate();
  CaseResult item;
  item.spec = test::Engine().NewCase();
  item.spec.name = "a: b, c";
  item.spec.mode = "full";
  item.spec.rules.assign(rules, {"measured_ratio", Op::kAtLeast, 3});
  item.origin = Origin::kReplay;
  item.measured.Set("measured_ratio", 2, {.layer = 3, .kind = "K"}, "100% of\r\nnothing");
  item.warnings = {"careful"};
  gate.cases = {item};
  Judge({}, gate);
  return gate;
}

TEST_CASE("An annotation stays one command, whatever its parts hold") {
  CHECK(WorkflowCommand({true, "", 0, "", "plain"}) == "::error::plain");
  CHECK(
      WorkflowCommand({false, "ci/a,b:c.json", 7, "50%: x\ny", "100%\r\n::error::no, not this"}) ==
      "::warning file=ci/a%2Cb%3Ac.json,line=7,title=50%25%3A x%0Ay::100%25%0D%0A::error::no, "
      "not this");
  CHECK(WorkflowCommand({true, "", 0, "%0A", "%25"}) == "::error title=%250A::%2525");
}

TEST_CASE("Failures are annotated where their case stands in the config") {
  const std::string config =
      "{\"expected_cases\": [\"a: b, c\"],\n \"cases\": [\n  {\"name\" :\n"
      "   \"a: b, c\"}, {\"name\": \"other\"}]}";
  const GateResult gate = Judged(1);
  const auto lines = LinesOfCases(config, gate);
  CHECK(lines == std::map<std::string, uint64_t>{{"a: b, c", 4}});
  const std::vector<Annotation> all = MakeAnnotations(gate, "gate.json", lines);
  REQUIRE(all.size() == 2);
  CHECK(WorkflowCommand(all[0]) ==
        "::error file=gate.json,line=4,title=kvtool gate%3A a%3A b%2C c::measured_ratio 2 < 3, at "
        "layer 3 K%0A100%25 of%0D%0Anothing");
  CHECK(WorkflowCommand(all[1]) ==
        "::warning file=gate.json,line=4,title=kvtool gate%3A a%3A b%2C c::careful");
}

TEST_CASE("No more annotations are made than are shown") {
  const std::vector<Annotation> all = MakeAnnotations(Judged(25), "", {});
  REQUIRE(all.size() == 11);
  CHECK(all[8].title == "kvtool gate: a: b, c");
  CHECK(all[9].text == "and 16 more: the summary and the page have them all");
  CHECK_FALSE(all[10].is_error);
}

TEST_CASE("What no rule explains is annotated, and a gate that passed says nothing") {
  GateResult gate = test::NewGate();
  Judge({}, gate);
  const std::vector<Annotation> all = MakeAnnotations(gate, "gate.json", {});
  REQUIRE(all.size() == 1);
  CHECK_THAT(all[0].text, Catch::Contains("no case was decided"));
  gate = Judged(1);
  gate.cases[0].rules.clear();
  gate.cases[0].status = Status::kNotRun;
  gate.cases[0].reason.clear();
  gate.cases[0].warnings.clear();
  gate.cases[0].spec.rules[0].limit = 1;
  Judge({}, gate);
  CHECK(MakeAnnotations(gate, "gate.json", {}).empty());
}

}  // namespace
}  // namespace kv::gate::annotations_test
