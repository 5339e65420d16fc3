// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/gate/engine.h"

namespace kv::mnn {

// MNN as the gate knows it: its test suite's cases, replayed on its runtime or on the design behind
// that, and its tools' logs.
const gate::Engine& Engine();

}  // namespace kv::mnn
