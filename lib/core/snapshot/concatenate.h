// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Pages of one cache as one: layer by layer, the tokens of each part behind those of the parts
// before. A part may hold some of the layers only. `whole` is the source that all parts lie in.
// Throws kInconsistent where the parts are not of one cache.
Snapshot Concatenate(std::vector<Snapshot> parts, Source whole);

}  // namespace kv
