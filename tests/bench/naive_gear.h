// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/bytes.h"

namespace kv::bench {

// The gear encoder as one writes it down first: a byte at a time, every candidate built in full,
// one zstd call after another with a context of its own. The peer of the real one; same bytes.
Bytes NaiveGear(ByteSpan raw, size_t plane_count);

}  // namespace kv::bench
