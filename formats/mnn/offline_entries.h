// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "lib/offline/entry.h"

namespace kv::mnn {

// Every logical dump below a folder, whatever its run, in the order in which MNN's own script sees
// them. That script looks past damage and counts it, and so does this: nothing here throws for
// content. Views point into `source`.
std::vector<offline::Entry> ReadOfflineEntries(const Source& source);

}  // namespace kv::mnn
