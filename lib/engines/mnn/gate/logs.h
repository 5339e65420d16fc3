// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/gate/logs.h"

namespace kv::mnn {

// Reads and judges what MNN's tools wrote. `input.files` may name "offline_lossless_json",
// "offline_lossless_online_json" and "bench_stdout_log".
gate::LogsRead ReadLogs(const gate::LogsInput& input);

}  // namespace kv::mnn
