// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/api/context.h"
#include "lib/api/kvtool_study.h"

namespace kv::api {

// Return the memory that the keys or the queries of `in` cover. Throw kBadArgument if that exceeds
// the address space.
ByteSpan SpanKeys(const kvt_scores& in, const kvt_geometry& geometry);
ByteSpan SpanQueries(const kvt_scores& in, const kvt_geometry& geometry);

}  // namespace kv::api
