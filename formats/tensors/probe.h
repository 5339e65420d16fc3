// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/registry.h"

namespace kv {

// Probes formats that are one file or a folder of such files. A file fits or does not; a folder is
// certain if all its files except *.json fit, possible if some do.
Confidence ProbeFiles(const Source& source, bool (*fits)(ByteSpan));

}  // namespace kv
