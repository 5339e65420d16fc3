// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/report/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/report/html_style.h"

namespace kv::report {
namespace {

constexpr std::string_view kStyle = R"(*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:68rem;margin:0 auto;padding:1.2rem 1rem 3rem;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.2rem 0 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.sub{color:var(--dim);margin:0 0 1rem}p{max-width:46rem;margin:.4rem 0}
.facts{display:flex;flex-wrap:wrap;gap:.6rem;margin:1rem 0;padding:0}
.facts div{border:1px solid var(--rule);border-radius:.5rem;padding:.45rem .8rem;min-width:7rem}
.facts dt{color:var(--dim);font-size:.8rem}.facts dd{margin:0;font-size:1.15rem;font-weight:600}
.row{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));gap:.5rem 1.2rem}
figure{margin:.5rem 0;max-width:28rem}svg{width:100%;height:auto;display:block}
figcaption{color:var(--dim);font-size:.85rem;max-width:46rem}
ul{padding-left:1.2rem}footer{color:var(--dim);font-size:.85rem;margin-top:2rem}
@media print{main{max-width:none}}
)";

// "Error against ratio" to "error-against-ratio".
std::string FileName(std::string_view title) {
  std::string name;
  for (const char c : title.substr(0, 60)) {
    const bool upper = c >= 'A' && c <= 'Z';
    const bool plain = upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (plain) name += upper ? static_cast<char>(c - 'A' + 'a') : c;
    if (!plain && !name.empty() && name.back() != '-') name += '-';
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "picture" : name;
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
  section_ = EscapeMarkup(text);
  body_ += fmt::format("<h2>{}</h2>\n", section_);
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

void Page::Figure(const Picture& picture, std::string_view caption) {
  if (!in_figures_) body_ += "<div class=\"row\">\n";
  in_figures_ = true;
  body_ += fmt::format("<figure>\n{}<figcaption>{}</figcaption>\n</figure>\n",
                       picture.Inline(caption), EscapeMarkup(caption));
  const std::string name = FileName(picture.title);
  const auto taken = [&](const std::string& file) {
    return std::any_of(pictures_.begin(), pictures_.end(),
                       [&](const PictureFile& other) { return other.name == file; });
  };
  std::string file = name + ".svg";
  for (int i = 2; taken(file); ++i) file = fmt::format("{}-{}.svg", name, i);
  pictures_.push_back({std::move(file), picture.File(caption)});
}

void Page::Notes(std::string_view heading, const std::vector<std::string>& notes) {
  if (notes.empty()) return;
  Heading(heading);
  body_ += "<ul>\n";
  for (const std::string& note : notes) body_ += fmt::format("<li>{}</li>\n", EscapeMarkup(note));
  body_ += "</ul>\n";
}

std::string Page::Text(const Origin& origin) const {
  std::string footer;
  if (!origin.program.empty()) {
    footer = fmt::format("<footer>Made by {} with<br><code>{}</code>", EscapeMarkup(origin.program),
                         EscapeMarkup(origin.command));
    for (const std::string& input : origin.inputs) footer += "<br>" + EscapeMarkup(input);
    footer += "</footer>\n";
  }
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light "
      "dark\">\n<title>{}</title>\n<style>\n{}{}{}{}</style>\n"
      "</head>\n<body>\n<main>\n{}{}{}</main>\n{}</body>\n</html>\n",
      title_, ChartStyle(), kStyle, has_tables_ ? TableStyle() : "", judges_ ? VerdictStyle() : "",
      body_, in_figures_ ? "</div>\n" : "", footer, has_tables_ ? TableScript() : "");
}

}  // namespace kv::report
