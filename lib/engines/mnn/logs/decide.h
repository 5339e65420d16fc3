// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string_view>

#include "lib/study/gate/rules.h"

namespace kv::mnn::logs {

using gate::Op;
using gate::RuleOutcome;
using gate::Status;

// A rule without a limit, such as a verdict in words.
RuleOutcome NewRule(std::string_view metric, Op op);
// Judges a value against a limit. `unlike` explains a failure that the engine's own verdict may
// not show.
RuleOutcome Decide(std::string_view metric, Op op, double limit, const std::optional<double>& value,
                   std::string_view log, std::string_view unlike);
// Judges a drop in speed, but only if it lies beyond the limit whichever way its noise is counted.
RuleOutcome DecideDrop(std::string_view metric, double limit, const std::optional<double>& drop,
                       const std::optional<double>& noise);

}  // namespace kv::mnn::logs
