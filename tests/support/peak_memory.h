// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace kv::test {

// Measures how far the resident size of this process, mapped pages included, rises from now on.
class PeakMemory {
 public:
  PeakMemory() {
    std::ofstream("/proc/self/clear_refs") << "5";  // resets VmHWM
    before_ = StatusBytes("VmRSS:");
  }
  uint64_t growth_bytes() const {
    const uint64_t peak = StatusBytes("VmHWM:");
    return peak > before_ ? peak - before_ : 0;
  }

 private:
  static uint64_t StatusBytes(const std::string& field) {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      uint64_t kib = 0;
      if (word == field && status >> kib) return kib << 10;
    }
    return 0;
  }

  uint64_t before_ = 0;
};

}  // namespace kv::test
