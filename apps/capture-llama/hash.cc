// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "apps/capture-llama/describe.h"
#include "apps/capture-llama/failure.h"

// Without a library to link, and without the hash where the header is not there either.
#if __has_include(<xxhash.h>)
#define XXH_INLINE_ALL
#include <xxhash.h>
#define KVTOOL_HAS_XXHASH 1
#endif

namespace kv::capture {

#ifdef KVTOOL_HAS_XXHASH
std::string HashOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Failure(kIo, path + ": " + std::strerror(errno));
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  std::vector<char> buffer(size_t{1} << 20);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) ||
         file.gcount() > 0) {
    XXH3_64bits_update(&state, buffer.data(), static_cast<size_t>(file.gcount()));
  }
  if (file.bad()) throw Failure(kIo, path + ": cannot be read");
  constexpr char kDigits[] = "0123456789abcdef";
  const uint64_t hash = XXH3_64bits_digest(&state);
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[hash >> shift & 15];
  return text;
}
#else
std::string HashOf(const std::string&) { return ""; }
#endif

}  // namespace kv::capture
