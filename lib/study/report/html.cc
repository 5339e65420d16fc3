// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/report/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/study/report/html_style.h"
#include "lib/study/report/svg.h"

namespace kv::report {
namespace {

constexpr std::string_view kStyle = R"(*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:68rem;margin:0 auto;padding:1.2rem 1rem 3rem}
h1{font-size:1.5rem;margin:.2rem 0 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.sub{color:var(--dim);margin:0 0 1rem}p{max-width:46rem;margin:.4rem 0}
.facts{display:flex;flex-wrap:wrap;gap:.6rem;margin:1rem 0;padding:0}
.facts div{border:1px solid var(--rule);border-radius:.5rem;padding:.45rem .8rem;min-width:7rem}
.facts dt{color:var(--dim);font-size:.8rem}.facts dd{margin:0;font-size:1.15rem;font-weight:600}
.row{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem}
figure{margin:.5rem 0}figure.wide{grid-column:1/-1;max-width:52rem}svg{width:100%;height:auto;display:block}
figcaption{color:var(--dim);font-size:.85rem;max-width:46rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.5rem 0}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--rule);text-align:left;white-space:nowrap}
th{color:var(--dim);font-weight:600;font-size:.85rem}.n{text-align:right}
tr.s td{font-weight:600}ul{padding-left:1.2rem}footer{color:var(--dim);font-size:.85rem;margin-top:2rem}
@media print{main{max-width:none}}
)";

bool LooksLikeNumber(std::string_view cell) {
  return !cell.empty() &&
         std::string_view("0123456789-+.<").find(cell[0]) != std::string_view::npos;
}

}  // namespace

Page::Page(std::string_view title, std::string_view subtitle) : title_(EscapeMarkup(title)) {
  body_ = fmt::format("<h1>{}</h1>\n", title_);
  if (!subtitle.empty()) {
    body_ += fmt::format("<p class=\"sub\">{}</p>\n", EscapeMarkup(subtitle));
  }
}

void Page::EndFigures() {
  if (in_figures_) body_ += "</div>\n";
  in_figures_ = false;
}

void Page::Heading(std::string_view text) {
  EndFigures();
  body_ += fmt::format("<h2>{}</h2>\n", EscapeMarkup(text));
}

void Page::Paragraph(std::string_view text) {
  EndFigures();
  body_ += fmt::format("<p>{}</p>\n", EscapeMarkup(text));
}

void Page::Facts(const std::vector<std::pair<std::string, std::string>>& facts) {
  EndFigures();
  body_ += "<dl class=\"facts\">\n";
  for (const auto& [name, value] : facts) {
    body_ +=
        fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", EscapeMarkup(name), EscapeMarkup(value));
  }
  body_ += "</dl>\n";
}

void Page::Figure(std::string_view svg, std::string_view caption, bool wide) {
  if (!in_figures_) body_ += "<div class=\"row\">\n";
  in_figures_ = true;
  body_ += fmt::format("<figure{}>\n{}<figcaption>{}</figcaption>\n</figure>\n",
                       wide ? " class=\"wide\"" : "", svg, EscapeMarkup(caption));
}

void Page::Table(const std::vector<std::vector<std::string>>& rows,
                 const std::vector<size_t>& strong) {
  EndFigures();
  if (rows.empty()) return;
  body_ += "<div class=\"scroll\"><table>\n";
  for (size_t r = 0; r < rows.size(); ++r) {
    const bool is_strong = r > 0 && std::count(strong.begin(), strong.end(), r - 1) != 0;
    body_ += is_strong ? "<tr class=\"s\">" : "<tr>";
    for (size_t c = 0; c < rows[r].size(); ++c) {
      // A column is aligned by its first value.
      const bool number = rows.size() > 1 && c < rows[1].size() && LooksLikeNumber(rows[1][c]);
      body_ += fmt::format("<{0}{1}>{2}</{0}>", r == 0 ? "th" : "td", number ? " class=\"n\"" : "",
                           EscapeMarkup(rows[r][c]));
    }
    body_ += "</tr>\n";
  }
  body_ += "</table></div>\n";
}

void Page::Notes(std::string_view heading, const std::vector<std::string>& notes) {
  if (notes.empty()) return;
  Heading(heading);
  body_ += "<ul>\n";
  for (const std::string& note : notes) body_ += fmt::format("<li>{}</li>\n", EscapeMarkup(note));
  body_ += "</ul>\n";
}

void Page::Footer(std::string_view text) {
  EndFigures();
  body_ += fmt::format("<footer>{}</footer>\n", EscapeMarkup(text));
}

std::string Page::Text() const {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light "
      "dark\">\n<title>{}</title>\n<style>\n{}{}{}</style>\n"
      "</head>\n<body>\n<main>\n{}{}</main>\n</body>\n</html>\n",
      title_, ChartStyle(), kStyle, judges_ ? VerdictStyle() : "", body_,
      in_figures_ ? "</div>\n" : "");
}

}  // namespace kv::report
