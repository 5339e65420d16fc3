// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/api/context.h"
#include "lib/api/kvtool_study.h"

namespace kv::api {

// Returns the memory that the keys or the queries of `in` cover. Throws kBadArgument where that is
// more than memory is.
ByteSpan KeysOf(const kvt_scores& in, const kvt_geometry& geometry);
ByteSpan QueriesOf(const kvt_scores& in, const kvt_geometry& geometry);

}  // namespace kv::api
