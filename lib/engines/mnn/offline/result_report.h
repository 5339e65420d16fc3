// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/engines/mnn/offline/offline.h"

namespace kv::offline {

// The original's document: its keys, in its order, with its values.
nlohmann::ordered_json ResultJson(const std::string& dump_dir, const Options& options,
                                  const Result& result);
// The original's Markdown summary of the same.
std::string ResultMarkdown(const std::string& dump_dir, const Options& options,
                           const Result& result);

}  // namespace kv::offline
