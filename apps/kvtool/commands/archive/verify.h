// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "apps/kvtool/commands/archive/archive_output.h"

namespace kv {

// Restores an archive to nowhere and says what it found; with a source, compares with it. What
// `kvtool verify` and `kvtool decompress --test` do.
ExitStatus VerifyArchive(const std::string& input, const std::string& against,
                         const ArchiveLimit& limit, const ReportOptions& report, Context& context);

}  // namespace kv
