// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/report/svg_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/report/svg.h"

namespace kv::report {
namespace {

bool IsFollowing(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

std::string Coordinate(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string Picture::Inline(std::string_view description) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\">"
      "<title>{}</title>\n{}{}</svg>\n",
      Coordinate(width), Coordinate(height), EscapeMarkup(title),
      description.empty() ? "" : fmt::format("<desc>{}</desc>\n", EscapeMarkup(description)), body);
}

std::string Picture::File(std::string_view description) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" role=\"img\"><title>{2}</title>\n<desc>{3}</desc>\n<style>\n"
      "{4}</style>\n<rect class=\"pa\" width=\"{0}\" height=\"{1}\"/>\n{5}</svg>\n",
      Coordinate(width), Coordinate(height), EscapeMarkup(title), EscapeMarkup(description),
      FileStyle(), body);
}

std::string Line(std::string_view classes, double x1, double y1, double x2, double y2) {
  return fmt::format("<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", classes,
                     Coordinate(x1), Coordinate(y1), Coordinate(x2), Coordinate(y2));
}

std::string Text(std::string_view classes, double x, double y, std::string_view text) {
  return fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\">{}</text>\n", classes, Coordinate(x),
                     Coordinate(y), EscapeMarkup(text));
}

std::string Text(std::string_view classes, double x, double y, std::string_view text,
                 size_t letters) {
  const std::string shown = Printable(text);
  if (Letters(shown) <= letters) return Text(classes, x, y, shown);
  size_t end = 0;
  for (size_t count = 0; end < shown.size(); ++end) {
    if (!IsFollowing(shown[end]) && ++count == letters) break;
  }
  return fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\">{}…<title>{}</title></text>\n", classes,
                     Coordinate(x), Coordinate(y), EscapeMarkup(shown.substr(0, end)),
                     EscapeMarkup(shown));
}

std::string Dot(size_t series, double x, double y, double radius, std::string_view tip) {
  const size_t shape = series % 4;
  const double r = radius;
  std::string element;
  if (shape == 0) {
    element = fmt::format("circle class=\"f{}\" cx=\"{}\" cy=\"{}\" r=\"{}\"",
                          series % kChartColours, Coordinate(x), Coordinate(y), Coordinate(r));
  } else {
    const std::string path =
        shape == 1 ? fmt::format("M{0} {0}h{1}v{1}h-{1}z", Coordinate(-0.9 * r), 1.8 * r)
        : shape == 2
            ? fmt::format("M0 {}L{} {}h{}z", Coordinate(-1.2 * r), Coordinate(1.15 * r),
                          Coordinate(0.9 * r), Coordinate(-2.3 * r))
            : fmt::format("M0 {0}L{1} 0L0 {1}L{0} 0z", Coordinate(-1.3 * r), Coordinate(1.3 * r));
    element = fmt::format("path class=\"f{}\" transform=\"translate({} {})\" d=\"{}\"",
                          series % kChartColours, Coordinate(x), Coordinate(y), path);
  }
  const std::string_view name = std::string_view(element).substr(0, element.find(' '));
  return tip.empty()
             ? fmt::format("<{}/>\n", element)
             : fmt::format("<{}><title>{}</title></{}>\n", element, EscapeMarkup(tip), name);
}

size_t Letters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !IsFollowing(c); }));
}

double TextWidth(std::string_view text) { return 6.6 * static_cast<double>(Letters(text)); }

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
  for (const char c : Printable(text, true)) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace kv::report
