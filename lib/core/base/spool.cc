// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A separate object file: libkvtool, which does not touch the file system, has its own version.
#include <fcntl.h>

#include "lib/core/base/file.h"
#include "lib/core/base/system.h"
#include "lib/core/base/temporary.h"

namespace kv {
namespace fs = std::filesystem;

int OpenSpool() {
  std::error_code ignored;
  const fs::path folder = fs::temp_directory_path(ignored);
  const int unnamed = sys::OpenUnnamed(AT_FDCWD, folder.c_str(), O_EXCL, 0600);
  if (unnamed >= 0) return unnamed;
  const Temporary temporary(folder / "spool");  // unlinked as soon as it is open
  const int descriptor =
      ::open(temporary.name().c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor >= 0) return descriptor;
  throw SystemError(Finding::kWriteFailed, "cannot create a temporary file", folder.string());
}

}  // namespace kv
