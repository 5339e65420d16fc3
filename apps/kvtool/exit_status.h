// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Exit statuses of the program.
#pragma once

#include "lib/core/base/error.h"

namespace kv {

enum ExitStatus : int {
  kDone = 0,         // success: done, gate passed, files equal
  kVerdict = 1,      // gate failed, verify found a mismatch, diff found a difference
  kUsageError = 2,   // bad flag, missing argument, bad configuration
  kInvalid = 3,      // input is invalid or corrupt
  kIoError = 4,      // missing, unreadable, exists without -f, disk full
  kUnsupported = 5,  // input is recognised, but not supported
  kBug = 70,
  kInterrupted = 130,
};

inline ExitStatus ExitStatusFor(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return kUsageError;
    case ErrorCode::kInvalidData:
      return kInvalid;
    case ErrorCode::kIo:
      return kIoError;
    case ErrorCode::kUnsupported:
      return kUnsupported;
    case ErrorCode::kInternal:
      return kBug;
  }
  return kBug;
}

// Returns the worse of two statuses; over many inputs the worst counts, in the order 70, 5, 4, 3,
// 2, 1, 0.
inline ExitStatus Worse(ExitStatus a, ExitStatus b) { return a > b ? a : b; }

}  // namespace kv
