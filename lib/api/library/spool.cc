// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/file.h"
#include "lib/core/base/system.h"

// Replaces lib/core/base/spool.cc: the library makes no temporary file, but spools to memory.
namespace kv {

int OpenSpool() {
  const int descriptor = sys::OpenMemory();
  if (descriptor < 0)
    throw Error(Finding::kNoMemory, "out of memory for the source that an archive restores");
  return descriptor;
}

}  // namespace kv
