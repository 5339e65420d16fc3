// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "apps/kvtool/console/console.h"
#include "lib/study/gate/result.h"

namespace kv {

// The verdict for people: one line per case, then every failed rule with its place, its reason and
// the command that shows it again. `input` names it where there are many.
void PrintGate(Console& console, const gate::GateResult& result, const std::string& input = "");

// Every figure that a rule can name.
void PrintMetrics(Console& console);

// On standard error, as GitHub Actions reads them: why a gate failed, at the cases of its config;
// and why there is no verdict, with its hint.
void PrintAnnotations(Console& console, const gate::GateResult& result, const std::string& config,
                      std::string_view config_text);
void PrintAnnotation(Console& console, const Error& error);

}  // namespace kv
