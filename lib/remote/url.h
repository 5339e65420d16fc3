// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by url.cc, and by http.cc or without_http.cc

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lib/core/base/file.h"

// Files behind http:// and https:// URLs, read by ranges (RFC 9110): objects by presigned URLs,
// and whatever a static server serves.
namespace kv::remote {

// Whether the text starts with http:// or https://.
bool IsUrl(std::string_view text);

// Returns the name that stands for a URL wherever one is shown or stored: without user, password,
// query and fragment, which may be secrets. Opening the name opens the URL; another URL of that
// name gets a number behind it.
std::string NameOfUrl(const std::string& url);

// Returns `text` with each URL in it as NameOfUrl names it, but for numbers. A URL ends before a
// quote, white space, or a comma and another URL. For texts that are shown, such as command lines.
std::string WithoutUrlSecrets(std::string_view text);

// For SetUrlOpener. `name` is what NameOfUrl returned; null if it is no URL. Asks the server for
// the size. Throws kReadFailed, and kOpenFailed also for a URL that NameOfUrl has not named: one
// that a file names is not fetched.
std::unique_ptr<RangeReader> OpenUrl(const std::string& name);

// Whether this program was built with what URLs need; without it OpenUrl refuses them.
bool CanOpenUrls();

// Calls `say` with a line before a wait that a server has asked for, from any thread.
void SetWaitNotice(std::function<void(const std::string& line)> say);

// What this process has asked for and got.
struct Traffic {
  uint64_t requests = 0, bytes = 0;
};
Traffic TrafficSoFar();

// Throws kOpenFailed, and without libcurl always.
std::unique_ptr<RangeReader> OpenHttp(std::string url);

// Hands a line to what SetWaitNotice has set.
void SayWait(const std::string& line);

}  // namespace kv::remote
