// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "apps/kvtool/line/help.h"

namespace kv {

// All declarations of options, with their older names, for what checks them and documents them.
nlohmann::ordered_json OptionsDocument(const std::vector<CommandDescription>& commands);

}  // namespace kv
