// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "apps/kvtool/archive_output.h"

namespace kv {

// Restores each archive to nowhere and says what it found; with a source, compares with it. What
// `kvtool verify` and `kvtool decompress --test` do.
ExitStatus VerifyArchives(const std::vector<std::string>& inputs, const std::string& against,
                          bool keep_going, const ArchiveLimit& limit, const ReportOptions& report,
                          Context& context);

}  // namespace kv
