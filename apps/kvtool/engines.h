// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/gate/engine.h"

namespace kv {

// The engines that the gate can replay, and whose logs and summaries it can read: the one table of
// them. The first engine shapes what no case decides: the suite, its rules, the rows of summaries.
gate::Engines Engines();

}  // namespace kv
