// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/engines/mnn/runtime/replay.h"

namespace kv::mnn {

// Say why H2O removed nothing, and why the lossless path compressed nothing. They name the
// parameter that prevented it, and return an empty text if something was removed or compressed.
std::string WhyNothingEvicted(const runtime::ReplayResult& row);
std::string WhyNothingCompressed(const runtime::ReplayResult& row);

}  // namespace kv::mnn
