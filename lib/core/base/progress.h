// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

namespace kv {

// Long operations report here; the program draws the progress, the library only counts. Calls may
// come from any thread.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void Begin(uint64_t total_bytes) = 0;
  virtual void Advance(uint64_t bytes) = 0;
};

}  // namespace kv
