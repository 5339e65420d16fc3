// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by url.cc, and by http.cc or without_http.cc

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lib/core/base/file.h"

// Files behind http:// and https:// URLs, read by ranges (RFC 9110): objects by presigned URLs, and
// anything that a static server offers.
namespace kv::remote {

// Returns true if the text starts with http:// or https://.
bool IsUrl(std::string_view text);

// Returns the name by which a URL is shown and stored: without user, password, query and fragment,
// which may be secrets. Opening the name opens the URL; another URL with the same name gets a
// numeric suffix.
std::string NameOfUrl(const std::string& url);

// Replaces each URL in `text` by its name, without a suffix. A URL ends before a quote, white
// space, or a comma followed by another URL. For texts that are shown, such as command lines.
std::string WithoutUrlSecrets(std::string_view text);

// Opener for SetUrlOpener. `name` is a result of NameOfUrl; returns nullptr if it is not a URL.
// Requests the size from the server. Throws kReadFailed, and kOpenFailed also for a URL that
// NameOfUrl has not named: a URL found inside a file is not fetched.
std::unique_ptr<RangeReader> OpenUrl(const std::string& name);

// Returns true if this program was built with URL support; otherwise OpenUrl refuses URLs.
bool CanOpenUrls();

// Sets a function that gets a line before each wait that a server has requested, from any thread.
void SetWaitNotice(std::function<void(const std::string& line)> say);

// Requests and bytes of this process so far.
struct Traffic {
  uint64_t requests = 0, bytes = 0;
};
Traffic TrafficSoFar();

// Throws kOpenFailed; without libcurl always.
std::unique_ptr<RangeReader> OpenHttp(std::string url);

// Passes a line to the function set by SetWaitNotice.
void NotifyWait(const std::string& line);

}  // namespace kv::remote
