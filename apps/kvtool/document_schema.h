// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace kv {

// The schema of the documents called `name`. `text` is a file of apps/kvtool/schema: a title, and
// as
// "$defs" what an element of "results" is; the envelope around it is the same for all.
nlohmann::ordered_json EnvelopeSchema(std::string_view name, std::string_view text);
// The schema of the gate's summary.json, kvtool.gate/1: a result of its document as a file.
nlohmann::ordered_json SummarySchema(std::string_view text);

}  // namespace kv
