// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <sys/mman.h>

#include "lib/core/base/file.h"

// Replaces lib/core/base/spool.cc, which makes a temporary file in a folder.
namespace kv {

int OpenSpool() {
  const int descriptor = ::memfd_create("kvtool", MFD_CLOEXEC);
  if (descriptor < 0) throw Error(Finding::kNoMemory, "no memory for what an archive restores to");
  return descriptor;
}

}  // namespace kv
