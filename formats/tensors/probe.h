// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/registry.h"

namespace kv {

// For formats that are one file or a folder of such files. A file fits or not; a folder is certain
// when all its files but *.json fit, possible when some do.
Confidence ProbeFiles(const Source& source, bool (*fits)(ByteSpan));

}  // namespace kv
