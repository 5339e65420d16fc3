// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/report/axis.h"

#include "lib/report/svg.h"

namespace kv::report {
namespace {

// 1, 2 and 5 times powers of ten in the range; of a wide range the powers alone.
std::vector<double> LogTicks(double low, double high) {
  const bool wide = high / low > 300;
  std::vector<double> ticks;
  for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = power * factor;
      if (tick >= low && tick <= high && (!wide || factor == 1)) ticks.push_back(tick);
    }
  }
  return ticks;
}

double StepOf(const Axis& axis) {
  const std::vector<double> ticks = axis.Ticks();
  return ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
}

}  // namespace

std::vector<double> Axis::Ticks() const {
  if (is_log) return LogTicks(low, high);
  // Round in the unit of the labels: 64 KiB rather than 62.5.
  double unit = 1;
  while (bytes && high >= 1024 * unit) unit *= 1024;
  // Labels along the page are wider than high.
  const int count = bytes && begin < end ? 4 : 5;
  std::vector<double> ticks = RoundTicks(low / unit, high / unit, count);
  for (double& tick : ticks) tick *= unit;
  if (whole) {
    ticks.erase(std::remove_if(ticks.begin(), ticks.end(),
                               [](double tick) { return tick != std::round(tick); }),
                ticks.end());
  }
  return ticks;
}

std::string Axis::Label(double value) const {
  return bytes ? ShortBytes(value) : ShortNumber(value);
}

void Axis::RoundLow() { low = std::floor(low / StepOf(*this) + 1e-9) * StepOf(*this); }
void Axis::RoundHigh() { high = std::ceil(high / StepOf(*this) - 1e-9) * StepOf(*this); }

std::vector<double> RoundTicks(double low, double high, int count) {
  if (!(low < high) || !std::isfinite(low) || !std::isfinite(high)) return {low};
  const double rough = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double lead = rough / power;
  const double step = power * (lead <= 1.0 ? 1 : lead <= 2.0 ? 2 : lead <= 5.0 ? 5 : 10);
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  const double last = std::floor(high / step + 1e-9);
  // Multiples of the step, so that 0.3 is 0.3 and zero is zero.
  for (double i = first; i <= last && ticks.size() < 50; ++i) {
    const double tick = i * step;
    ticks.push_back(std::abs(tick) < step * 1e-6 ? 0.0 : tick);
  }
  return ticks;
}

}  // namespace kv::report
