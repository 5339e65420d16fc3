// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/llama_state/target.h"

#include <fmt/format.h>

#include <charconv>

#include "lib/core/base/bytes.h"

namespace kv::llama_state {
namespace {

struct Era {
  Target target;
  uint32_t first_build, last_build;  // between which files of this layout were seen
};

// SEQ of C and D are the same bytes, as are SESSION of A and B.
constexpr Era kEras[] = {
    {{'A', 9, 2, false, true, false, 0}, 3889, 4753},
    {{'B', 9, 2, false, true, true, 0}, 5640, 5640},
    {{'C', 9, 2, true, true, true, 0}, 6122, 7698},
    {{'D', 9, 2, true, false, true, 2}, 8179, 10361},
    {{'E', 10, 3, true, false, true, 3}, 0, 0},
};

Error Unknown(std::string_view version) {
  return Error(Finding::kUsage,
               fmt::format("--target-version '{}': expected a llama.cpp build such as b6122 or "
                           "v0.5.0, or a layout A to E",
                           Escaped(version, 40)));
}

// "v0.4.0" and later, whatever follows.
bool IsRelease(std::string_view version) {
  uint32_t major = 0, minor = 0;
  const char* const end = version.data() + version.size();
  const auto [dot, error] = std::from_chars(version.data() + 1, end, major);
  if (error != std::errc() || dot == end || *dot != '.') return false;
  return std::from_chars(dot + 1, end, minor).ec == std::errc() && (major > 0 || minor >= 4);
}

}  // namespace

Target TargetOf(std::string_view version) {
  if (version.empty()) return std::end(kEras)[-1].target;
  if (version.size() == 1) {
    for (const Era& era : kEras) {
      if (era.target.letter == version[0]) return era.target;
    }
    throw Unknown(version);
  }
  if (version[0] == 'v' && IsRelease(version)) return std::end(kEras)[-1].target;
  uint32_t build = 0;
  const char* const end = version.data() + version.size();
  const auto [stop, error] = std::from_chars(version.data() + 1, end, build);
  if (version[0] != 'b' || error != std::errc() || stop != end) throw Unknown(version);
  const Era* before = nullptr;
  for (const Era& era : kEras) {
    if (era.first_build <= build && build <= era.last_build) return era.target;
    if (build < era.first_build || era.first_build == 0) {
      if (before == nullptr)
        throw Unknown(version).Hint("layouts of builds before b3889 cannot be written");
      throw Error(Finding::kUsage, fmt::format("--target-version {}: the build lies between those "
                                               "known to write layout {} and layout {}",
                                               version, before->target.letter, era.target.letter))
          .Hint("give the layout's letter; the engine refuses a file of the wrong layout");
    }
    before = &era;
  }
  throw Unknown(version);
}

}  // namespace kv::llama_state
