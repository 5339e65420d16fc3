// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/llama_state/cache_blob.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::llama_state {

// Views, cells and facts of a chosen reading; no tensor byte is touched.
Snapshot Build(Source source, const Reading& reading, Scope scope);

// Whether quantised K and V are stored Hadamard-rotated, by the rule of FORMAT.md and `rotated`
// (auto, yes, no). What the file leaves open stays open or is noted. Throws kUsage.
void SettleHadamard(Snapshot& snapshot, const Layout& layout, const std::string& rotated);

}  // namespace kv::llama_state
