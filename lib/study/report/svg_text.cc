// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/report/svg_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/study/report/svg.h"

namespace kv::report {

std::string Coordinate(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string Open(double width, double height, std::string_view title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\">"
      "<title>{}</title>\n",
      Coordinate(width), Coordinate(height), EscapeMarkup(title));
}

std::string Line(std::string_view classes, double x1, double y1, double x2, double y2) {
  return fmt::format("<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", classes,
                     Coordinate(x1), Coordinate(y1), Coordinate(x2), Coordinate(y2));
}

std::string Text(std::string_view classes, double x, double y, std::string_view text) {
  return fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\">{}</text>\n", classes, Coordinate(x),
                     Coordinate(y), EscapeMarkup(text));
}

std::string Cell(double x, double y, double width, double height, double strength, int kind,
                 std::string_view tip) {
  std::string paint = "class=\"kx\"";
  if (std::isfinite(strength)) {
    paint = fmt::format("class=\"k{}\" fill-opacity=\"{}\"", kind,
                        Coordinate(0.06 + 0.94 * std::clamp(strength, 0.0, 1.0)));
  }
  const std::string inside = tip.empty()
                                 ? std::string("/>\n")
                                 : fmt::format("><title>{}</title></rect>\n", EscapeMarkup(tip));
  return fmt::format("<rect {} x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{}", paint,
                     Coordinate(x), Coordinate(y), Coordinate(std::max(width, 0.4)),
                     Coordinate(height), inside);
}

std::string ShortNumber(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "-" : value > 0 ? "inf" : "-inf";
  if (value == 0) return "0";
  if (std::abs(value) >= 1e4 && std::abs(value) < 1e15 && value == std::floor(value)) {
    return fmt::format("{:.0f}", value);
  }
  return fmt::format("{:.4g}", value);
}

std::string ShortBytes(double bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

std::string EscapeMarkup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') {
          out += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        } else {
          out += c;
        }
    }
  }
  return out;
}

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
