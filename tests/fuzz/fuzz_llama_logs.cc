// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any text as a log of llama.cpp: refused with an error of this project, or read into cases whose
// figures are finite numbers, with unique names.
#include <cmath>
#include <cstdlib>
#include <set>

#include "lib/core/base/error.h"
#include "lib/core/base/utf8.h"
#include "lib/engines/llamacpp/logs/logs.h"
#include "lib/study/gate/judge.h"
#include "lib/study/gate/log_files.h"
#include "tests/fuzz/accepted.h"
#include "tests/support/engines.h"

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

void Check(std::vector<kv::gate::CaseResult> cases) {
  kv::gate::GateResult gate;
  gate.engine = &kv::test::Engine();
  std::set<std::string> names;
  for (kv::gate::CaseResult& item : cases) {
    Require(names.insert(item.spec.name).second && kv::Printable(item.spec.name) == item.spec.name);
    for (const kv::gate::MetricInfo* info : gate.engine->Metrics()) {
      const auto value = item.measured.Value(info->name);
      Require(!value || std::isfinite(*value));
      item.spec.rules.push_back({std::string(info->name), kv::gate::Op::kAtMost, 1});
    }
    gate.cases.push_back(std::move(item));
  }
  kv::gate::Judge({}, gate);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = kv::gate::LogText({reinterpret_cast<const char*>(data), size});
  for (const auto read : {kv::llamacpp::ReadTextLog, kv::llamacpp::ReadBench}) {
    try {
      Check(read(text, "a.log"));
      ++kv::fuzz::accepted;
    } catch (const kv::Error&) {
    }
  }
  return 0;
}
