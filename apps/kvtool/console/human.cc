// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Numbers as people read them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/kvtool/console/console.h"
#include "lib/fields/format.h"

namespace kv {

std::string HumanBytes(uint64_t bytes) { return format::Bytes(bytes); }

std::string HumanRate(uint64_t bytes, double seconds) {
  if (seconds <= 0) return "-";
  const double rate = static_cast<double>(bytes) / seconds / (1 << 20);
  return fmt::format("{:.{}f} MiB/s", rate, rate < 10 ? 2 : rate < 100 ? 1 : 0);
}

std::string HumanSeconds(double seconds) {
  if (seconds < 1e-6) return fmt::format("{:.0f} ns", seconds * 1e9);
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string HumanTimeLeft(double seconds) {
  constexpr double kMost = 359'999;  // 99 h 59 min: beyond it nobody waits
  const auto whole = static_cast<uint64_t>(std::clamp(std::ceil(seconds), 0.0, kMost));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string HumanRatio(uint64_t original, uint64_t stored) {
  if (stored == 0) return "-";
  const double ratio = static_cast<double>(original) / static_cast<double>(stored);
  if (ratio < 1) return fmt::format("{:.3f}x ({:.1f}% added)", ratio, 100 * (1 / ratio - 1));
  return fmt::format("{:.3f}x ({:.1f}% removed)", ratio, 100 * (1 - 1 / ratio));
}

std::string Sparkline(const std::vector<double>& values, bool utf8) {
  constexpr std::array<const char*, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr std::array<const char*, 8> kAscii = {"_", ".", "-", "~", "=", "+", "*", "#"};
  std::string line;
  for (double value : values) {
    const auto step = static_cast<size_t>(std::clamp(value, 0.0, 1.0) * 7.999);
    line += (utf8 ? kBlocks : kAscii)[step];
  }
  return line;
}

}  // namespace kv
