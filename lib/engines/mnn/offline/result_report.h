// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/engines/mnn/offline/offline.h"

namespace kv::mnn::offline {

// The result as the original's JSON document, with its keys in its order.
nlohmann::ordered_json ResultJson(const std::string& dump_dir, const Options& options,
                                  const Result& result);
// The result as the original's Markdown summary.
std::string ResultMarkdown(const std::string& dump_dir, const Options& options,
                           const Result& result);

}  // namespace kv::mnn::offline
