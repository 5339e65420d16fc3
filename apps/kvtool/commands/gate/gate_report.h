// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "apps/kvtool/console/console.h"
#include "lib/study/gate/result.h"

namespace kv {

// The printed verdict: one line per case, then every failed rule with its place, its reason and the
// command that reproduces it. `input` names the input if there are several.
void PrintGate(Console& console, const gate::GateResult& result, const std::string& input = "");

// Every figure that a rule can name.
void PrintMetrics(Console& console);

// Lines for GitHub Actions on standard error: why a gate failed, at the cases of its config; or why
// there is no verdict, with its hint.
void PrintAnnotations(Console& console, const gate::GateResult& result, const std::string& config,
                      std::string_view config_text);
void PrintAnnotation(Console& console, const Error& error);

}  // namespace kv
