// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/bytes.h"

namespace kv::bench {

// The gear encoder in its simplest form: a byte at a time, every candidate built in full, and a new
// context for each zstd call. It writes the same bytes as the real encoder, which is compared with
// it.
Bytes NaiveGear(ByteSpan raw, size_t plane_count);

}  // namespace kv::bench
