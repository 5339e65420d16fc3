// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/bytes.h"

// Defined by targets whose input lies under hashes: the input with right ones. `choice` selects
// among ways to repair. Weak: null in the other targets. The replay feeds each damaged corpus file
// repaired as well.
__attribute__((weak)) kv::Bytes FuzzRepair(kv::ByteSpan input, unsigned choice);
