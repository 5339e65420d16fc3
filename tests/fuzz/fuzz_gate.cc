// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as a gate's config and as an older summary: what is accepted can be judged and
// reported.
#include <cstdlib>

#include "lib/core/base/error.h"
#include "lib/study/gate/judge.h"
#include "lib/study/gate/summary.h"
#include "tests/fuzz/accepted.h"
#include "tests/support/engines.h"

namespace {

void JudgeConfig(std::string_view text, kv::gate::GateResult& result) {
  const kv::gate::Config config = kv::gate::ParseConfig(text, "folder", kv::test::Engine());
  if (config.cases.empty() && !config.expected.any()) std::abort();
  for (const kv::gate::CaseSpec& spec : config.cases) {
    for (const kv::gate::Rule& rule : spec.rules) {
      if (kv::test::Engine().FindMetric(rule.metric) == nullptr) std::abort();
    }
    result.cases.push_back(kv::gate::NotRun(spec, "not here"));
  }
  kv::gate::Judge({.baseline_rules = config.baseline_rules, .expected = config.expected}, result);
  // A case without a measurement must not pass.
  if (result.passed()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  kv::gate::GateResult result = kv::test::NewGate();
  try {
    result.baseline = kv::gate::ParseBaseline(text, "old.json", kv::test::Engine());
  } catch (const kv::Error&) {
  }
  try {
    JudgeConfig(text, result);
    kv::test::SummaryJson(result, "", {}).dump();
    kv::gate::SummaryMarkdown(result, {});
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
