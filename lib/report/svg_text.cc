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

// Every colour that writes or draws a mark stands out from the paper by 4.5 to 1, in both settings;
// a test computes that.
struct Colour {
  std::string_view name, light, dark;
};
constexpr Colour kColours[] = {{"paper", "#ffffff", "#12161c"},  {"ink", "#1c2430", "#e6eaf0"},
                               {"dim", "#5b6573", "#9aa5b3"},    {"rule", "#e3e7ec", "#2a323d"},
                               {"accent", "#0b62c4", "#5aa7ff"}, {"second", "#c2410c", "#ff9255"},
                               {"c0", "#0b62c4", "#5aa7ff"},     {"c1", "#c2410c", "#ff9255"},
                               {"c2", "#0f7b4f", "#4fcf96"},     {"c3", "#8b3fb8", "#c792ea"},
                               {"c4", "#946200", "#e3b341"},     {"c5", "#0e7490", "#4dd0e1"},
                               {"c6", "#be185d", "#ff7eb6"},     {"c7", "#5f6b7c", "#a3afbf"}};

constexpr std::string_view kRules =
    R"(svg text{font:12px system-ui,sans-serif;fill:var(--dim)}svg .b{font-weight:600;fill:var(--ink)}
svg .m{text-anchor:middle}svg .e{text-anchor:end}svg .g{stroke:var(--rule)}svg .a{stroke:var(--dim)}
svg .l{fill:none;stroke-width:1.6;stroke-linejoin:round}svg .em{stroke-width:3}svg .da{stroke-dasharray:5 3}
svg .ld{fill:none;stroke-width:.8;stroke-opacity:.6}svg .ta{stroke:var(--ink);stroke-dasharray:2 3}
svg .pa{fill:var(--paper)}svg .k0{fill:var(--accent)}svg .k1{fill:var(--second)}
svg .kx{fill:none;stroke:var(--second);stroke-dasharray:2 2}
)";

// The rules with the colours of one setting in the place of custom properties, which not every
// program that shows SVG knows.
std::string Painted(std::string rules, std::string_view Colour::*setting) {
  for (const Colour& colour : kColours) {
    const std::string property = fmt::format("var(--{})", colour.name);
    for (size_t at = rules.find(property); at != std::string::npos; at = rules.find(property, at)) {
      rules.replace(at, property.size(), colour.*setting);
    }
  }
  return rules;
}

std::string Rules() {
  std::string rules(kRules);
  for (int i = 0; i < kChartColours; ++i) {
    rules += fmt::format("svg .c{0}{{stroke:var(--c{0})}}svg .f{0}{{fill:var(--c{0})}}{1}", i,
                         i % 4 == 3 ? "\n" : "");
  }
  return rules;
}

std::string Properties(std::string_view Colour::*setting) {
  std::string text = ":root{";
  for (const Colour& colour : kColours) {
    text += fmt::format("--{}:{};", colour.name, colour.*setting);
  }
  text.back() = '}';
  return text;
}

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

bool IsFollowing(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

std::string ChartStyle() {
  return Properties(&Colour::light) + "\n@media(prefers-color-scheme:dark){" +
         Properties(&Colour::dark) + "}\n" + Rules();
}

std::string FileStyle() {
  return Painted(Rules(), &Colour::light) + "@media(prefers-color-scheme:dark){\n" +
         Painted(Rules(), &Colour::dark) + "}\n";
}

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
