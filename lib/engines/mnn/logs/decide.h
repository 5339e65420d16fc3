// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string_view>

#include "lib/engines/mnn/logs/logs.h"

namespace kv::mnn::logs {

struct Limit {
  std::string_view op;
  double value;
};

// A rule whose value decides; `unlike` says why the engine's verdict on it may be another one.
EngineRule Decide(std::string_view metric, Limit limit, const std::optional<double>& value,
                  std::string_view log, std::string_view unlike);
// A drop in speed is judged only where it, with its noise on either side, lies beyond the limit.
EngineRule DecideDrop(std::string_view metric, double limit, const std::optional<double>& drop,
                      const std::optional<double>& noise);

}  // namespace kv::mnn::logs
