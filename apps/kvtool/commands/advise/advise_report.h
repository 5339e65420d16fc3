// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "apps/kvtool/commands/advise/engine_settings.h"
#include "apps/kvtool/console/console.h"
#include "lib/study/advise/advice.h"

namespace kv {

// What eviction alone can do: the best plan, its parts, and the frontier.
void PrintAdvice(Console& console, const advise::Runs& runs, const advise::AdviceRequest& request,
                 const advise::Advice& advice);

// How each engine is told to do it, one line for its parameters and one for their effect.
void PrintSettings(Console& console, advise::LossKind kind,
                   const std::vector<EngineSettings>& settings);

}  // namespace kv
