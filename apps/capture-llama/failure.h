// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <stdexcept>
#include <string>

namespace kv::capture {

// Exit statuses, the same as kvtool's.
enum Status : int {
  kDone = 0,
  kUsage = 2,
  kInvalid = 3,
  kIo = 4,
  kUnsupported = 5,
  kBug = 70,
  kInterrupted = 130,
};

// Ends the program with a status and a sentence.
class Failure : public std::runtime_error {
 public:
  Failure(Status status, const std::string& text) : std::runtime_error(text), status(status) {}
  const Status status;
};

}  // namespace kv::capture
