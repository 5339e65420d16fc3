// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by http.cc or without_http.cc

#include <memory>
#include <string>

#include "lib/core/base/ranges.h"

namespace kv::remote {

// Throws kOpenFailed, and without libcurl always.
std::unique_ptr<RangeReader> OpenHttp(std::string url);

}  // namespace kv::remote
