// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/utf8.h"
#include "lib/report/svg.h"
#include "lib/report/svg_text.h"

namespace kv::report {
namespace {

constexpr double kPointsOfUnit = 0.75;  // a CSS pixel: text of 9 pt, a chart as wide as a column

// Returns a text as a literal string in WinAnsiEncoding. Other characters become '?'.
std::string PdfText(std::string_view text) {
  constexpr std::string_view kEllipsis = "\xe2\x80\xa6";
  std::string out = "(";
  const std::string shown = Printable(text);
  for (size_t at = 0; at < shown.size(); ++at) {
    const auto c = static_cast<unsigned char>(shown[at]);
    if (c < 0x80) {
      if (c == '(' || c == ')' || c == '\\') out += '\\';
      out += shown[at];
      continue;
    }
    const std::string_view rest = std::string_view(shown).substr(at);
    const unsigned next = rest.size() > 1 ? static_cast<unsigned char>(rest[1]) : 0;
    const unsigned letter = (c & 0x1fU) << 6 | (next & 0x3fU);
    if (c >> 5 == 6 && letter >= 0xa0 && letter <= 0xff) {
      out += fmt::format("\\{:03o}", letter);
    } else {
      out += rest.substr(0, kEllipsis.size()) == kEllipsis ? "\\205" : "?";
    }
    while (at + 1 < shown.size() && (static_cast<unsigned char>(shown[at + 1]) & 0xc0) == 0x80)
      ++at;
  }
  return out + ")";
}

// Returns the components of a colour, mixed with paper's where its strength is below 1.
std::string ColourText(std::string_view name, double strength) {
  const std::string_view hex = LightColour(name);
  const auto digit = [&](size_t at) { return hex[at] <= '9' ? hex[at] - '0' : hex[at] - 'a' + 10; };
  std::string text;
  for (const size_t at : {1, 3, 5}) {
    const double share = (16 * digit(at) + digit(at + 1)) / 255.0;
    text += fmt::format("{:.3f} ", 1 - strength * (1 - share));
  }
  return text;
}

std::string PointText(double x, double y) { return Coordinate(x) + ' ' + Coordinate(y) + ' '; }

// Draws a circle as four curves; the factor lets them touch it at their middles.
std::string CircleText(const Mark& mark) {
  const double r = mark.radius, c = 0.5523 * r, x = mark.x, y = mark.y;
  std::string text = PointText(x + r, y) + "m ";
  const auto curve = [&](double x1, double y1, double x2, double y2, double x3, double y3) {
    text +=
        PointText(x + x1, y + y1) + PointText(x + x2, y + y2) + PointText(x + x3, y + y3) + "c ";
  };
  curve(r, c, c, r, 0, r);
  curve(-c, r, -r, c, -r, 0);
  curve(-r, -c, -c, -r, 0, -r);
  curve(c, -r, r, -c, r, 0);
  return text;
}

std::string OutlineText(const Mark& mark) {
  if (mark.kind == Mark::Kind::kCircle) return CircleText(mark);
  if (mark.kind == Mark::Kind::kLine) {
    return PointText(mark.x, mark.y) + "m " + PointText(mark.right, mark.bottom) + "l ";
  }
  if (mark.kind == Mark::Kind::kRect) {
    return PointText(mark.x, mark.y) + PointText(mark.right - mark.x, mark.bottom - mark.y) + "re ";
  }
  std::string text;
  for (const Mark::Step& step : mark.steps) {
    text += step.to == 'Z' ? "h " : PointText(step.x, step.y) + (step.to == 'M' ? "m " : "l ");
  }
  return text;
}

bool HasClass(const Mark& mark, std::string_view name) {
  return fmt::format(" {} ", mark.classes).find(fmt::format(" {} ", name)) != std::string::npos;
}

void DrawPdfText(const Mark& mark, const Paint& paint, std::string& out) {
  const bool is_bold = HasClass(mark, "b");
  const double width = PdfWidth(mark.text, is_bold);
  const double left = HasClass(mark, "m")   ? mark.x - width / 2
                      : HasClass(mark, "e") ? mark.x - width
                                            : mark.x;
  const std::string show = fmt::format("BT /{} 12 Tf 1 0 0 -1 {}Tm {} Tj ET\n", is_bold ? "B" : "R",
                                       PointText(left, mark.y), PdfText(mark.text));
  // Ends the dashes of the previous line.
  if (HasClass(mark, "n")) out += "q 1 1 1 RG 3 w [] 0 d 1 j 1 Tr " + show + "Q\n";
  out += ColourText(paint.fill, 1) + "rg " + show;
}

void DrawPdfMark(const Mark& mark, std::string& out) {
  const Paint paint = ChoosePaint(mark);
  if (mark.kind == Mark::Kind::kText) return DrawPdfText(mark, paint, out);
  if (paint.stroke.empty() && paint.fill.empty()) return;
  if (!paint.fill.empty()) out += ColourText(paint.fill, mark.strength) + "rg ";
  if (!paint.stroke.empty()) {
    out += fmt::format("{}RG {} w [{}] 0 d 1 j ", ColourText(paint.stroke, 1), paint.width,
                       paint.dash);
  }
  out += OutlineText(mark);
  out += paint.stroke.empty() ? "f\n" : paint.fill.empty() ? "S\n" : "B\n";
}

}  // namespace

std::string Picture::Pdf() const {
  const double page_width = width * kPointsOfUnit, page_height = height * kPointsOfUnit;
  // Converts the chart's units, which count downwards, to points, which count upwards.
  std::string content =
      fmt::format("{0} 0 0 -{0} 0 {1} cm\n", kPointsOfUnit, Coordinate(page_height));
  for (const Mark& mark : marks) DrawPdfMark(mark, content);
  const auto font = [](std::string_view name) {
    return fmt::format("<</Type/Font/Subtype/Type1/BaseFont/{}/Encoding/WinAnsiEncoding>>", name);
  };
  const std::vector<std::string> objects = {
      "<</Type/Catalog/Pages 2 0 R>>",
      "<</Type/Pages/Kids[3 0 R]/Count 1>>",
      fmt::format("<</Type/Page/Parent 2 0 R/MediaBox[0 0 {} {}]/Contents 4 0 R"
                  "/Resources<</Font<</R 5 0 R/B 6 0 R>>>>>>",
                  Coordinate(page_width), Coordinate(page_height)),
      fmt::format("<</Length {}>>\nstream\n{}endstream", content.size(), content),
      font("Helvetica"),
      font("Helvetica-Bold"),
      fmt::format("<</Title {}/Producer(kvtool)>>", PdfText(title))};
  std::string file = "%PDF-1.4\n";
  std::string table = fmt::format("xref\n0 {}\n0000000000 65535 f \n", objects.size() + 1);
  for (size_t i = 0; i < objects.size(); ++i) {
    table += fmt::format("{:010} 00000 n \n", file.size());
    file += fmt::format("{} 0 obj\n{}\nendobj\n", i + 1, objects[i]);
  }
  return fmt::format("{}{}trailer\n<</Size {}/Root 1 0 R/Info 7 0 R>>\nstartxref\n{}\n%%EOF\n",
                     file, table, objects.size() + 1, file.size());
}

}  // namespace kv::report
