// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "apps/kvtool/command.h"
#include "lib/fields/fields.h"
#include "lib/study/quantisation/origin.h"

namespace kv {

// The document kvtool.quant-origin, beside its inputs.
const Fields<quantisation::CacheOrigin>& CacheOriginFields();
void PrintOrigin(Console& console, const quantisation::CacheOrigin& origin);
// Whether every quantised side was named.
bool IsNamed(const quantisation::CacheOrigin& origin);

}  // namespace kv
