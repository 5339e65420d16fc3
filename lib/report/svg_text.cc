// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/report/svg_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/utf8.h"
#include "lib/fields/value.h"
#include "lib/report/svg.h"

namespace kv::report {
namespace {

// Every colour of text or marks has a contrast of at least 4.5 to 1 on the background, in both
// settings; a test checks this.
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

// The styles of marks. A rule of CSS and the paint of a PDF come from each row.
struct Style {
  std::string_view name, stroke = {}, fill = {}, dash = {};
  double width = 0;  // 0: unchanged
};
constexpr std::string_view kNoFill = "none";
constexpr Style kStyles[] = {{"g", "rule"},
                             {"a", "dim"},
                             {"l", "", kNoFill, "", 1.6},
                             {"em", "", "", "", 3},
                             {"da", "", "", "5 3"},
                             {"ld", "dim", kNoFill, "", 0.8},
                             {"ta", "ink", "", "2 3"},
                             {"pa", "", "paper"},
                             {"k0", "", "accent"},
                             {"k1", "", "second"},
                             {"kx", "second", kNoFill, "2 2"}};
// Classes of text: m is centred, e ends at its place, b is bold, n has an outline of paper.
constexpr std::string_view kTextRules =
    R"(svg text{font:12px system-ui,sans-serif;fill:var(--dim)}svg .b{font-weight:600;fill:var(--ink)}
svg .m{text-anchor:middle}svg .e{text-anchor:end}
svg .n{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}
)";

// Widths of ' ' to '~' in thousandths of the font's size: Helvetica and Helvetica-Bold, which every
// reader of PDF has (Adobe's metrics of the 14 standard fonts).
constexpr uint16_t kWidths[2][95] = {
    {278,  278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278,
     556,  556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556,
     1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778,
     667,  778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556,
     333,  556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556,
     556,  556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584},
    {278, 333, 474, 556, 556, 889, 722, 238, 333, 333, 389, 584, 278, 333, 278, 278,
     556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 333, 333, 584, 584, 584, 611,
     975, 722, 722, 722, 722, 667, 611, 778, 722, 278, 556, 722, 611, 833, 722, 778,
     667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 333, 278, 333, 584, 556,
     333, 556, 611, 556, 611, 556, 333, 611, 611, 278, 278, 556, 278, 889, 611, 611,
     611, 611, 389, 556, 333, 611, 556, 778, 556, 556, 500, 389, 280, 389, 584}};

// Replaces the custom properties in the rules by the colours of one setting, because some programs
// that show SVG do not support custom properties.
std::string Painted(std::string rules, std::string_view Colour::*setting) {
  for (const Colour& colour : kColours) {
    const std::string property = fmt::format("var(--{})", colour.name);
    for (size_t at = rules.find(property); at != std::string::npos; at = rules.find(property, at)) {
      rules.replace(at, property.size(), colour.*setting);
    }
  }
  return rules;
}

// Returns the styles as CSS, then the lines (cN) and dots (fN) of series.
std::string Rules() {
  std::string rules(kTextRules);
  const auto colour = [](std::string_view name) {
    return name == kNoFill ? std::string(name) : fmt::format("var(--{})", name);
  };
  for (const Style& style : kStyles) {
    rules += fmt::format("svg .{}{{", style.name);
    if (!style.stroke.empty()) rules += fmt::format("stroke:{};", colour(style.stroke));
    if (!style.fill.empty()) rules += fmt::format("fill:{};", colour(style.fill));
    if (!style.dash.empty()) rules += fmt::format("stroke-dasharray:{};", style.dash);
    if (style.width > 0) rules += fmt::format("stroke-width:{};", style.width);
    rules.back() = '}';
  }
  rules += '\n';
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

// Returns 1, 2 and 5 times powers of ten in the range; for a wide range only the powers.
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

double ChooseStep(const Axis& axis) {
  const std::vector<double> ticks = axis.Ticks();
  return ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
}

bool IsFollowing(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

std::vector<std::string_view> SplitWords(std::string_view text) {
  std::vector<std::string_view> words = Split(text, ' ');
  std::erase(words, "");
  return words;
}

// Returns the longest beginning of a text that fits `width`, with an ellipsis if it is cut.
std::string CutText(const std::string& text, double width) {
  if (TextWidth(text) <= width) return text;
  size_t end = 0, good = 0;
  for (; end < text.size(); ++end) {
    if (IsFollowing(text[end])) continue;
    if (TextWidth(text.substr(0, end)) + TextWidth("…") > width) break;
    good = end;
  }
  return text.substr(0, good) + "…";
}

std::string PathText(const std::vector<Mark::Step>& steps) {
  std::string text;
  Mark::Step last{};
  for (const Mark::Step& step : steps) {
    const bool is_line = step.to == 'L';
    if (step.to == 'Z') {
      text += 'z';
    } else if (is_line && Coordinate(step.y) == Coordinate(last.y)) {
      text += 'H' + Coordinate(step.x);
    } else if (is_line && Coordinate(step.x) == Coordinate(last.x)) {
      text += 'V' + Coordinate(step.y);
    } else {
      text += step.to + Coordinate(step.x) + ' ' + Coordinate(step.y);
    }
    last = step;
  }
  return text;
}

void WriteMark(const Mark& mark, std::string& out) {
  std::string_view name;
  std::string attributes, content = EscapeMarkup(mark.text);
  switch (mark.kind) {
    case Mark::Kind::kLine:
      name = "line";
      attributes = fmt::format(" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"", Coordinate(mark.x),
                               Coordinate(mark.y), Coordinate(mark.right), Coordinate(mark.bottom));
      break;
    case Mark::Kind::kRect:
      name = "rect";
      attributes = fmt::format(" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", Coordinate(mark.x),
                               Coordinate(mark.y), Coordinate(mark.right - mark.x),
                               Coordinate(mark.bottom - mark.y));
      break;
    case Mark::Kind::kCircle:
      name = "circle";
      attributes = fmt::format(" cx=\"{}\" cy=\"{}\" r=\"{}\"", Coordinate(mark.x),
                               Coordinate(mark.y), Coordinate(mark.radius));
      break;
    case Mark::Kind::kPath:
      name = "path";
      attributes = fmt::format(" d=\"{}\"", PathText(mark.steps));
      break;
    case Mark::Kind::kText:
      name = "text";
      attributes = fmt::format(" x=\"{}\" y=\"{}\"", Coordinate(mark.x), Coordinate(mark.y));
      break;
  }
  if (Coordinate(mark.strength) != "1") {
    attributes += fmt::format(" fill-opacity=\"{}\"", Coordinate(mark.strength));
  }
  if (!mark.tip.empty()) content += fmt::format("<title>{}</title>", EscapeMarkup(mark.tip));
  out += fmt::format("<{} class=\"{}\"{}", name, mark.classes, attributes);
  out += content.empty() && mark.kind != Mark::Kind::kText
             ? std::string("/>\n")
             : fmt::format(">{}</{}>\n", content, name);
}

std::string MarksText(const std::vector<Mark>& marks) {
  std::string out;
  for (const Mark& mark : marks) WriteMark(mark, out);
  return out;
}

// Breaks text at blanks, so that no line is wider than `width`.
std::vector<std::string> WrapText(std::string_view text, double width) {
  std::vector<std::string> lines;
  const std::string printable = Printable(text);
  for (const std::string_view word : SplitWords(printable)) {
    std::string cut = CutText(std::string(word), width);
    if (!lines.empty() && TextWidth(lines.back() + ' ' + cut) <= width) {
      lines.back() += ' ' + cut;
    } else {
      lines.push_back(std::move(cut));
    }
  }
  return lines;
}

}  // namespace

Paint ChoosePaint(const Mark& mark) {
  Paint paint;
  const bool is_text = mark.kind == Mark::Kind::kText;
  if (is_text) paint.fill = "dim";
  for (const std::string_view name : SplitWords(mark.classes)) {
    if (is_text) {
      if (name == "b") paint.fill = "ink";
      continue;
    }
    for (const Style& style : kStyles) {
      if (style.name != name) continue;
      if (!style.stroke.empty()) paint.stroke = style.stroke;
      if (!style.fill.empty()) paint.fill = style.fill == kNoFill ? "" : style.fill;
      if (!style.dash.empty()) paint.dash = style.dash;
      if (style.width > 0) paint.width = style.width;
    }
    for (const Colour& colour : kColours) {  // "c3" strokes, "f3" fills in c3
      if (colour.name == name) paint.stroke = colour.name;
      if (name.size() == 2 && name[0] == 'f' && colour.name[0] == 'c' &&
          colour.name.substr(1) == name.substr(1)) {
        paint.fill = colour.name;
      }
    }
  }
  return paint;
}

std::string_view LightColour(std::string_view name) {
  const auto found = std::find_if(std::begin(kColours), std::end(kColours),
                                  [&](const Colour& colour) { return colour.name == name; });
  return found == std::end(kColours) ? "#000000" : found->light;
}

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
  // Makes steps round in the unit of the labels: 64 KiB rather than 62.5.
  double factor = 1;
  while (unit == Unit::kBytes && high >= 1024 * factor) factor *= 1024;
  // Labels along the page are wider than high.
  const int count = unit == Unit::kBytes && begin < end ? 4 : 5;
  std::vector<double> ticks = RoundTicks(low / factor, high / factor, count);
  for (double& tick : ticks) tick *= factor;
  if (whole) {
    ticks.erase(std::remove_if(ticks.begin(), ticks.end(),
                               [](double tick) { return tick != std::round(tick); }),
                ticks.end());
  }
  return ticks;
}

std::string Axis::Label(double value) const {
  if (unit == Unit::kBytes) return ShortBytes(value);
  if (unit == Unit::kPercent) return ShortNumber(100 * value) + "%";
  return ShortNumber(value) + (unit == Unit::kFactor ? "x" : "");
}

std::string Axis::Exact(double value) const {
  if (unit == Unit::kPercent) return format::Percent(value);
  if (unit == Unit::kFactor) return format::Factor(value);
  if (unit == Unit::kMeasured) return format::Nats(value);
  if (unit == Unit::kRate) return format::Rate(value);
  return Label(value);
}

void Axis::RoundLow() {
  low = is_log ? LogTicks(low / 10, low).back()
               : std::floor(low / ChooseStep(*this) + 1e-9) * ChooseStep(*this);
}
void Axis::RoundHigh() {
  high = is_log ? LogTicks(high, high * 10).front()
                : std::ceil(high / ChooseStep(*this) - 1e-9) * ChooseStep(*this);
}

std::vector<double> RoundTicks(double low, double high, int count) {
  if (!IsRange(low, high)) return {low};
  const double rough = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double lead = rough / power;
  const double step = power * (lead <= 1.0 ? 1 : lead <= 2.0 ? 2 : lead <= 5.0 ? 5 : 10);
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  const double last = std::floor(high / step + 1e-9);
  // Computes ticks as multiples of the step, so that 0.3 is 0.3 and zero is zero.
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
      description.empty() ? "" : fmt::format("<desc>{}</desc>\n", EscapeMarkup(description)),
      MarksText(marks));
}

std::string Picture::File(std::string_view description) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" role=\"img\"><title>{2}</title>\n<desc>{3}</desc>\n<style>\n"
      "{4}</style>\n<rect class=\"pa\" width=\"{0}\" height=\"{1}\"/>\n{5}</svg>\n",
      Coordinate(width), Coordinate(height), EscapeMarkup(title), EscapeMarkup(description),
      FileStyle(), MarksText(marks));
}

Mark Line(std::string_view classes, double x1, double y1, double x2, double y2) {
  return {Mark::Kind::kLine, std::string(classes), x1, y1, x2, y2};
}

Mark Rect(std::string_view classes, double x, double y, double width, double height) {
  return {Mark::Kind::kRect, std::string(classes), x, y, x + width, y + height};
}

Mark Text(std::string_view classes, double x, double y, std::string_view text) {
  Mark mark{Mark::Kind::kText, std::string(classes), x, y};
  mark.text = text;
  return mark;
}

Mark Text(std::string_view classes, double x, double y, std::string_view text, double width) {
  const std::string shown = Printable(text);
  Mark mark = Text(classes, x, y, CutText(shown, width));
  if (mark.text != shown) mark.tip = shown;
  return mark;
}

Mark Dot(size_t series, double x, double y, double radius, std::string_view tip) {
  Mark mark{Mark::Kind::kPath, fmt::format("f{}", series % kChartColours), x, y};
  mark.tip = tip;
  const double r = radius;
  std::vector<std::pair<double, double>> corners;
  switch (series % 4) {
    case 0:
      mark.kind = Mark::Kind::kCircle;
      mark.radius = r;
      break;
    case 1:
      corners = {
          {-0.9 * r, -0.9 * r}, {0.9 * r, -0.9 * r}, {0.9 * r, 0.9 * r}, {-0.9 * r, 0.9 * r}};
      break;
    case 2:
      corners = {{0, -1.2 * r}, {1.15 * r, 0.9 * r}, {-1.15 * r, 0.9 * r}};
      break;
    default:
      corners = {{0, -1.3 * r}, {1.3 * r, 0}, {0, 1.3 * r}, {-1.3 * r, 0}};
  }
  for (const auto& [right, down] : corners) {
    mark.steps.push_back({mark.steps.empty() ? 'M' : 'L', x + right, y + down});
  }
  if (!corners.empty()) mark.steps.push_back({'Z'});
  return mark;
}

double PdfWidth(std::string_view text, bool is_bold) {
  double thousandths = 0;
  for (const char c : text) {
    if (c >= ' ' && c <= '~') {
      thousandths += kWidths[is_bold ? 1 : 0][c - ' '];
    } else if (!IsFollowing(c)) {
      // Letters of three bytes and more may be as wide as high.
      thousandths += static_cast<unsigned char>(c) >= 0xe3 ? 1000 : 667;
    }
  }
  return 12 * thousandths / 1000;
}

// Screens have wider fonts than Helvetica: DejaVu Sans, the widest usual one, by 1.18.
double TextWidth(std::string_view text) { return 1.18 * PdfWidth(text); }

void DrawTickLabels(const Axis& axis, double shift, double y, Marks& marks) {
  double free_from = 0;
  for (const double value : axis.Ticks()) {
    const std::string label = axis.Label(value);
    const double half = TextWidth(label) / 2;
    const double middle = std::min(axis.At(value + shift), kChartWidth - half);
    if (middle - half < free_from) continue;
    marks.push_back(Text("t m", middle, y, label));
    free_from = middle + half + 5;
  }
}

double DrawLegend(const std::vector<LegendEntry>& entries, double top, Marks& marks) {
  constexpr double kGap = 14, kLeft = 4, kBetween = 4;
  double x = kLeft, y = top;
  for (const LegendEntry& entry : entries) {
    const double most = kChartWidth - 2 * kLeft - entry.width - kBetween;
    Mark text = Text(entry.is_bold ? "b" : "t", 0, 0, entry.text, most);
    const double width = entry.width + kBetween + TextWidth(text.text) * (entry.is_bold ? 1.1 : 1);
    if (x > kLeft && x + width > kChartWidth) {
      x = kLeft;
      y += kRow;
    }
    for (Mark mark : entry.marks) {
      const double middle = y + kRow / 2;
      mark.x += x, mark.right += x, mark.y += middle, mark.bottom += middle;
      for (Mark::Step& step : mark.steps) step.x += x, step.y += middle;
      marks.push_back(std::move(mark));
    }
    text.x = x + entry.width + kBetween;
    text.y = y + kRow / 2 + 4;
    marks.push_back(std::move(text));
    x += width + kGap;
  }
  return entries.empty() ? top : y + kRow;
}

void DrawTitle(Picture& picture) {
  constexpr size_t kMostLines = 3;
  std::vector<std::string> lines = WrapText(picture.title, (kChartWidth - 4) / 1.1);
  lines.resize(std::min(lines.size(), kMostLines));
  const double height = kRow * static_cast<double>(lines.size()) + 3;
  for (Mark& mark : picture.marks) {
    mark.y += height, mark.bottom += height;
    for (Mark::Step& step : mark.steps) step.y += height;
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    picture.marks.push_back(Text("b", 2, 12 + kRow * static_cast<double>(i), lines[i]));
  }
  picture.height += height;
}

Picture Picture::WithCaption(std::string_view caption) const {
  Picture picture = *this;
  double y = height + 12;
  for (const std::string& line : WrapText(caption, kChartWidth - 4)) {
    picture.marks.push_back(Text("t", 2, y, line));
    y += kRow;
  }
  picture.height = y - 6;
  return picture;
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
