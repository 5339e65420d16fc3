// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/engines/mnn/runtime/replay.h"

namespace kv::mnn {

// Why H2O removed nothing or the lossless path compressed nothing, naming the parameter; empty if
// something was.
std::string WhyNothingEvicted(const runtime::ReplayResult& row);
std::string WhyNothingCompressed(const runtime::ReplayResult& row);

}  // namespace kv::mnn
