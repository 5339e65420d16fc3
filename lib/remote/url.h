// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by url.cc, http.cc, without_http.cc

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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

// Opens a URL. Throws kOpenFailed; without libcurl always.
std::unique_ptr<RangeReader> OpenHttp(std::string url);

// Passes a line to the function set by SetWaitNotice.
void NotifyWait(const std::string& line);

// Parses the headers of an HTTP answer.

struct ContentRange {
  uint64_t first = 0, bytes = 0, total = 0;
  bool operator==(const ContentRange&) const = default;
};

// Parses "bytes 0-15/1000"; "bytes */0" is the empty range of an empty file. Returns nullopt for
// anything else or for contradictory numbers.
std::optional<ContentRange> ParseContentRange(std::string_view text);

struct Answer {
  int status = 0;
  std::optional<ContentRange> range;
  std::optional<uint64_t> content_length;
  std::string etag, last_modified;
  uint64_t retry_after_s = 0;  // delay that the server states; 0 if it states none

  // Takes a line of the header. A status line resets everything: each redirection has its own
  // answer.
  void TakeLine(std::string_view line);
};

// Distinguishes versions of an object.
struct Version {
  uint64_t bytes = 0;
  std::string etag, last_modified;

  // Returns true if a request can demand exactly this version. A weak tag ("W/...") never matches.
  bool can_be_asked_for() const;
  // Returns true if an answer is known to be of another version.
  bool Differs(const Answer& answer) const;
};

// Limits on retries. Waits double from first_wait_s to longest_wait_s, each randomly varied a
// little; a server's Retry-After counts, up to longest_asked_s.
struct Patience {
  int tries = 6;  // attempts in a row without progress
  double first_wait_s = 0.2, longest_wait_s = 20, longest_asked_s = 60;

  // Returns the seconds to wait after this many failures; `by_chance` is a random factor of about
  // 1.
  double WaitAfter(int failures, double by_chance, uint64_t retry_after_s) const;
};

// Returns true if a retry may help.
bool IsTransient(int status);

}  // namespace kv::remote
