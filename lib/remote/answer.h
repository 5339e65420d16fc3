// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// What the headers of an answer say.
namespace kv::remote {

struct ContentRange {
  uint64_t first = 0, bytes = 0, total = 0;
  bool operator==(const ContentRange&) const = default;
};

// Reads "bytes 0-15/1000", and "bytes */0" as no bytes of none. Nothing if it is anything else, or
// does not hold together.
std::optional<ContentRange> ParseContentRange(std::string_view text);

struct Answer {
  int status = 0;
  std::optional<ContentRange> range;
  std::optional<uint64_t> content_length;
  std::string etag, last_modified;
  uint64_t retry_after_s = 0;  // as long as the server says; 0 if it does not

  // Takes a line of the header. A status line starts anew: a redirection has an answer of its own.
  void TakeLine(std::string_view line);
};

// What tells one version of an object from another.
struct Version {
  uint64_t bytes = 0;
  std::string etag, last_modified;

  // Whether a request can ask for this version alone. A weak tag ("W/...") never matches.
  bool can_be_asked_for() const;
  // Whether an answer is of another version, as far as it says.
  bool Differs(const Answer& answer) const;
};

// How long to go on asking. Waiting doubles from first_wait_s to longest_wait_s, each a little
// longer or shorter by chance; a server's Retry-After counts, up to longest_asked_s.
struct Patience {
  int tries = 6;  // one after another that bring nothing
  double first_wait_s = 0.2, longest_wait_s = 20, longest_asked_s = 60;

  // Seconds to wait after so many failures; `by_chance` is about 1.
  double WaitAfter(int failures, double by_chance, uint64_t retry_after_s) const;
};

// Whether asking again may help.
bool IsTransient(int status);

}  // namespace kv::remote
