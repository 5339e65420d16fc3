// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/inputs/input_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "lib/core/base/file.h"
#include "lib/core/base/hash.h"

namespace kv {
namespace fs = std::filesystem;

uint64_t BytesOf(const std::string& path) {
  std::error_code failed;
  if (fs::is_regular_file(path, failed)) return fs::file_size(path, failed);
  uint64_t bytes = 0;
  for (fs::recursive_directory_iterator entry(path, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) bytes += entry->file_size(ignored);
  }
  return bytes;
}

std::string ContentHash(const std::string& path) {
  const Source source = Source::Open(path);
  StreamingHash hash;
  constexpr uint64_t kStep = uint64_t{8} << 20;
  for (const SourceFile& file : source.files) {
    if (source.is_folder) {
      const std::string head = fmt::format("{}{}{}{}", file.name, '\0', file.data->size(), '\0');
      hash.Update(AsBytes(head));
    }
    for (uint64_t at = 0; at < file.data->size(); at += kStep) {
      const uint64_t size = std::min(kStep, file.data->size() - at);
      hash.Update(file.data->bytes().subspan(at, size));
      file.data->Drop(at, size);
    }
  }
  return fmt::format("{:016x}", hash.Digest());
}

}  // namespace kv
