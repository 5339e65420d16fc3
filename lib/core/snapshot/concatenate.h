// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Joins pages of one cache: layer by layer, it puts the tokens of each part behind those of the
// earlier parts. A part may hold only some of the layers. `whole` is the source that contains all
// parts. Throws kInconsistent if the parts are not of one cache.
Snapshot Concatenate(std::vector<Snapshot> parts, Source whole);

}  // namespace kv
