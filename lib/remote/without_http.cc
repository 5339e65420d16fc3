// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Replaces http.cc if libcurl is unavailable: the static program loads no library.
#include "lib/core/base/error.h"
#include "lib/remote/url.h"

namespace kv::remote {

std::unique_ptr<RangeReader> OpenHttp(std::string /*url*/) {
  throw Error(Finding::kOpenFailed, "this kvtool is built without support for URLs")
      .Hint("fetch the file (curl -O URL), or use a kvtool of the Debian package or the wheel");
}

bool CanOpenUrls() { return false; }

Traffic TrafficSoFar() { return {}; }

}  // namespace kv::remote
