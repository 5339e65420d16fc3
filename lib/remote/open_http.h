// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by http.cc or without_http.cc, and by url.cc

#include <memory>
#include <string>

#include "lib/core/base/file.h"

namespace kv::remote {

// Throws kOpenFailed, and without libcurl always.
std::unique_ptr<RangeReader> OpenHttp(std::string url);

// Hands a line to what SetWaitNotice has set.
void SayWait(const std::string& line);

}  // namespace kv::remote
