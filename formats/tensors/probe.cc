// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/probe.h"

#include <filesystem>

namespace kv {

Confidence ProbeFiles(const Source& source, bool (*fits)(ByteSpan)) {
  size_t fitting = 0, other = 0;
  for (const SourceFile& file : source.files) {
    if (fits(file.data->bytes())) {
      ++fitting;
    } else if (!source.is_folder || std::filesystem::path(file.name).extension() != ".json") {
      ++other;
    }
  }
  if (fitting == 0) return Confidence::kNo;
  return other == 0 ? Confidence::kCertain : Confidence::kMaybe;
}

}  // namespace kv
