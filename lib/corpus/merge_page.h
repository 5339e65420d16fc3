// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/corpus/merge.h"
#include "lib/report/html.h"

namespace kv::corpus {

// A corpus at a glance, `json` being its MergedJson: what a gate says of it, how figures are
// spread, by layer and by model, what lies far out and how to look at it, and what failed.
report::Page MergedPage(const Merged& merged, const nlohmann::ordered_json& json);

}  // namespace kv::corpus
