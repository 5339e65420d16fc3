// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/integer_log.h"

#include <cmath>

namespace kv {

LogTable::LogTable() {
  log[0] = times[0] = 0;
  for (uint32_t i = 1; i < log.size(); ++i) {
    log[i] = static_cast<uint32_t>(std::lround(std::log2(i) * 65536));
    times[i] = i * log[i];
  }
}

const LogTable kLogTable;

}  // namespace kv
