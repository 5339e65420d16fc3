// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Parses the headers of an HTTP answer.
namespace kv::remote {

struct ContentRange {
  uint64_t first = 0, bytes = 0, total = 0;
  bool operator==(const ContentRange&) const = default;
};

// Parses "bytes 0-15/1000"; "bytes */0" is an empty range of nothing. Returns nullopt for anything
// else or for contradictory numbers.
std::optional<ContentRange> ParseContentRange(std::string_view text);

struct Answer {
  int status = 0;
  std::optional<ContentRange> range;
  std::optional<uint64_t> content_length;
  std::string etag, last_modified;
  uint64_t retry_after_s = 0;  // as the server states; 0 if it does not

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
  int tries = 6;  // consecutive attempts without progress
  double first_wait_s = 0.2, longest_wait_s = 20, longest_asked_s = 60;

  // Returns the seconds to wait after this many failures; `by_chance` is a random factor of about
  // 1.
  double WaitAfter(int failures, double by_chance, uint64_t retry_after_s) const;
};

// Returns true if a retry may help.
bool IsTransient(int status);

}  // namespace kv::remote
