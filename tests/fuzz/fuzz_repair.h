// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/bytes.h"

// Returns the input with matching hashes. Only targets whose input is protected by hashes define
// it. `choice` selects among ways to repair. The symbol is weak: null in the other targets. The
// replay also feeds each damaged corpus file after its repair.
__attribute__((weak)) kv::Bytes FuzzRepair(kv::ByteSpan input, unsigned choice);
