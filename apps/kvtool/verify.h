// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "apps/kvtool/command.h"

namespace kv {

// Restores each archive to nowhere and says what it found; with a source, compares with it. What
// `kvtool verify` and `kvtool decompress --test` do.
ExitStatus VerifyArchives(const std::vector<std::string>& inputs, const std::string& against,
                          bool keep_going, const ReportOptions& report, Context& context);

}  // namespace kv
