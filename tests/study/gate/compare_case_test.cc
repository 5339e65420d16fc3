// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cstring>

#include "lib/study/gate/judge.h"
#include "lib/study/gate/measure.h"
#include "lib/study/gate/summary.h"
#include "tests/support/attention_case.h"
#include "tests/support/engines.h"

namespace kv::gate::compare_case_test {
namespace {

// Twins are two equal f16 caches, in which tests change values.
struct Twins {
  std::unique_ptr<test::AttentionCase> ours =
                                           test::MakeAttentionCase({.layers = 3, .tokens = 20}, 5),
                                       theirs =
                                           test::MakeAttentionCase({.layers = 3, .tokens = 20}, 5);
  ThreadPool pool{2};

  static void Set(test::AttentionCase& made, uint32_t layer, bool is_value, uint64_t token,
                  uint32_t head, uint32_t dim, uint16_t bits) {
    LayerKv& of = made.snapshot.layers[layer];
    const StridedPiece& piece = (is_value ? *of.v : of.k).pieces.front();
    std::memcpy(const_cast<std::byte*>(piece.data) + piece.token.Offset(token) +
                    piece.head.Offset(head) + piece.dim.Offset(dim),
                &bits, sizeof bits);
  }
  GateResult Judged(CaseSpec spec, bool with_reference = true) {
    spec.mode = "compare";
    if (with_reference) {
      spec.reference = "golden";
      RequireReference(spec);
    }
    CaseResult result;
    if (with_reference) {
      result = CompareCase(spec, {ours->snapshot, nullptr, true, pool, nullptr, &theirs->snapshot});
    } else {
      result.spec = spec;
      result.origin = Origin::kCompare;
      MeasureCache({ours->snapshot, nullptr, true, pool}, result);
    }
    GateResult gate = test::NewGate();
    gate.cases.push_back(std::move(result));
    Judge({}, gate);
    return gate;
  }
};

constexpr uint16_t kNaN = 0x7e00, kInfinity = 0x7c00, kOne = 0x3c00, kNearOne = 0x3c01;

TEST_CASE("Equal caches pass, and the first value that differs is named") {
  Twins twins;
  const GateResult same = twins.Judged({});
  CHECK(same.passed());
  CHECK(Name(same.cases[0].reference->verdict()) == "identical");
  Twins::Set(*twins.ours, 1, true, 7, 1, 3, kOne);
  Twins::Set(*twins.theirs, 1, true, 7, 1, 3, kNearOne);
  Twins::Set(*twins.ours, 2, false, 0, 0, 0, kOne);
  const GateResult changed = twins.Judged({});
  CHECK(changed.failed());
  const RuleOutcome& failure = *changed.cases[0].first_failure();
  CHECK(failure.rule.metric == "reference.mismatches");
  CHECK(failure.value == 2);
  CHECK(Text(failure.where) == "layer 1 V, head 1, token 7, dim 3");
  CHECK(failure.reason ==
        "the first value that differs is 1 (0x3c00), the reference has 1.00097656 (0x3c01)");
  const Json json = test::SummaryJson(changed, "", {})["cases"][0];
  CHECK(json["reference"]["first"]["dim"] == 3);
  CHECK(json["reference"]["layers"][1]["v"]["different_count"] == 1);
  CHECK(json["reference"]["layers"][1]["k"]["different_count"] == 0);
  CHECK(json["true_figures"]["reference"]["k_mismatches"] == 1);
  CHECK(json["rules"][1]["where"]["dim"] == 3);
}

TEST_CASE("A tolerance is of K, of V, of one layer") {
  Twins twins;
  Twins::Set(*twins.ours, 1, true, 7, 1, 3, kOne);
  Twins::Set(*twins.theirs, 1, true, 7, 1, 3, kNearOne);
  CaseSpec spec;
  spec.tolerance.all = {0.01, 0.01};
  const GateResult within = twins.Judged(spec);
  CHECK(within.passed());
  CHECK(Name(within.cases[0].reference->verdict()) == "within_tolerance");
  spec.tolerance.all = {0.01, {}};
  CHECK(twins.Judged(spec).failed());
  spec.tolerance.layers = {{1, {{0.0, 0.01}}}};
  CHECK(twins.Judged(spec).passed());
  spec.tolerance.layers = {{2, {{0.0, 0.01}}}};
  CHECK(twins.Judged(spec).failed());
  // A config's own rules on other figures; a case without a distance is not near.
  CaseSpec near;
  near.rules = {{"reference.max_abs", Op::kAtMost, 0.01}};
  CHECK(twins.Judged(near).passed());
  Twins::Set(*twins.theirs, 0, false, 3, 0, 2, kNaN);
  const GateResult nan = twins.Judged(near);
  CHECK(nan.failed());
  CHECK(nan.cases[0].reason.find("required, but not known: 1 values are NaN") != std::string::npos);
}

TEST_CASE("A reference of another shape fails, whatever the values are") {
  Twins twins;
  twins.theirs->snapshot.layers.pop_back();
  CaseSpec spec;
  spec.rules = {{"reference.max_abs", Op::kAtMost, 1}};
  const GateResult gate = twins.Judged(spec);
  CHECK(gate.failed());
  CHECK(gate.cases[0].first_failure()->rule.metric == "reference.structure");
  CHECK(gate.cases[0].reason.find("layer 2: only in A") != std::string::npos);
}

TEST_CASE(
    "What is no number fails, in any layer, unless the reference has it or a rule allows it") {
  Twins twins;
  CaseSpec spec;
  spec.rules = {{"reference.different", Op::kAtMost, 9}};
  Twins::Set(*twins.ours, 2, true, 19, 1, 15, kNaN);
  Twins::Set(*twins.ours, 2, true, 18, 0, 1, kInfinity);
  const GateResult found = twins.Judged(spec);
  CHECK(found.failed());
  const RuleOutcome& failure = *found.cases[0].first_failure();
  CHECK(failure.rule.metric == "content.not_finite");
  CHECK(failure.value == 2);
  CHECK(Text(failure.where) == "layer 2 V, head 0, token 18, dim 1");
  CHECK(failure.reason.find("1 NaN, 1 infinite") == 0);
  // The reference has the same NaN, but an infinity of the other sign, which counts.
  Twins::Set(*twins.theirs, 2, true, 19, 1, 15, kNaN | 1);
  Twins::Set(*twins.theirs, 2, true, 18, 0, 1, kInfinity | 0x8000);
  CHECK(twins.Judged(spec).cases[0].measured.Value("content.not_finite") == 1);
  Twins::Set(*twins.theirs, 2, true, 18, 0, 1, kInfinity);
  CHECK(twins.Judged(spec).passed());
  // The same case is judged without a reference.
  CaseSpec alone;
  alone.rules = {{"reference.different", Op::kAtMost, 9}};
  CHECK(twins.Judged(alone, false).failed());
  alone.rules = {{"content.not_finite", Op::kAtMost, 2}};
  CHECK(twins.Judged(alone, false).passed());
  alone.rules = {{"content.not_finite", Op::kAtMost, 1}};
  CHECK(twins.Judged(alone, false).failed());
}

}  // namespace
}  // namespace kv::gate::compare_case_test
