// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/llama_state/cache_blob.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::llama_state {

// Makes the views, cells and facts of a chosen reading without touching tensor bytes.
Snapshot Build(Source source, const Reading& reading, Scope scope);

// Whether quantised K and V are stored Hadamard-rotated, by the rule of FORMAT.md and `rotated`
// (auto, yes, no). Whatever the file does not tell stays unknown or gets a note. Throws kUsage.
void SettleHadamard(Snapshot& snapshot, const Layout& layout, const std::string& rotated);

}  // namespace kv::llama_state
