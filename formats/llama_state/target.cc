// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/llama_state/target.h"

#include <fmt/format.h>

#include "lib/core/base/bytes.h"
#include "lib/core/base/number.h"

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
  version.remove_prefix(1);
  const auto major = TakeNumber<uint32_t>(version);
  if (!major || !version.starts_with('.')) return false;
  version.remove_prefix(1);
  const auto minor = TakeNumber<uint32_t>(version);
  return minor && (*major > 0 || *minor >= 4);
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
  const auto number = ParseNumber<uint32_t>(version.substr(1));
  if (version[0] != 'b' || !number) throw Unknown(version);
  const uint32_t build = *number;
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
