// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "lib/report/svg.h"
#include "lib/report/svg_text.h"

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

}  // namespace

std::string ChartStyle() {
  return Properties(&Colour::light) + "\n@media(prefers-color-scheme:dark){" +
         Properties(&Colour::dark) + "}\n" + Rules();
}

std::string FileStyle() {
  return Painted(Rules(), &Colour::light) + "@media(prefers-color-scheme:dark){\n" +
         Painted(Rules(), &Colour::dark) + "}\n";
}

}  // namespace kv::report
