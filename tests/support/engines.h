// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/engines/mnn/gate/engine.h"

namespace kv::test {

// A table of engines, as the program has one.
inline gate::Engines Engines() {
  static const gate::Engine* const kTable[] = {&mnn::Engine()};
  return kTable;
}

inline gate::GateResult NewGate() {
  gate::GateResult gate;
  gate.engines = Engines();
  return gate;
}

}  // namespace kv::test
