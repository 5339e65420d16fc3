// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/engines/mnn/gate/engine.h"
#include "lib/study/gate/summary.h"

namespace kv::test {

inline const gate::Engine& Engine() { return mnn::Engine(); }

inline gate::GateResult NewGate() {
  gate::GateResult gate;
  gate.engine = &Engine();
  return gate;
}

inline gate::Json SummaryJson(const gate::GateResult& gate, const std::string& generated_at,
                              const gate::OutputNames& outputs) {
  const auto text = [](std::string_view name) { return name; };
  return ToJson(gate::SummaryFields(Engine(), text).Object({gate, generated_at, outputs}));
}

}  // namespace kv::test
