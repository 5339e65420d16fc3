// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/report/html.h"
#include "lib/report/html_style.h"
#include "lib/report/svg.h"

namespace kv::report {
namespace {

std::string_view ClassOf(Tone tone) {
  switch (tone) {
    case Tone::kGood:
      return "good";
    case Tone::kBad:
      return "bad";
    case Tone::kUnsure:
      return "unsure";
    case Tone::kOpen:
      return "open";
    case Tone::kAbsent:
      return "absent";
  }
  return "open";
}

// A name that an address can hold: letters and digits, the rest as '-'.
std::string Anchor(std::string_view title) {
  std::string anchor;
  for (const char c : title) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    anchor += plain || c == '_' ? c : '-';
  }
  return anchor;
}

std::string Gauge(double share) {
  const double width = std::isfinite(share) ? std::clamp(50 * share, 1.0, 100.0) : 100;
  return fmt::format("<span class=\"gauge\"><i style=\"width:{:.0f}%\"></i></span>", width);
}

}  // namespace

std::string_view VerdictStyle() {
  return R"(:root{--good:#0b6e46;--bad:#b42318;--unsure:#8a5a00;--open:#5b6573}
@media(prefers-color-scheme:dark){:root{--good:#4fcf96;--bad:#ff8a7a;--unsure:#e3b341;--open:#9aa5b3}}
.good{--tone:var(--good)}.bad{--tone:var(--bad)}.unsure{--tone:var(--unsure)}.open,.absent{--tone:var(--open)}
.verdict{border:1px solid var(--rule);border-left:.5rem solid var(--tone);border-radius:.5rem;padding:.7rem 1rem;margin:1rem 0}
.verdict b{display:block;font-size:1.7rem;line-height:1.25;color:var(--tone)}.verdict p{margin:.1rem 0;overflow-wrap:anywhere}
.badge{display:inline-block;min-width:4.2rem;text-align:center;border-radius:.3rem;padding:.05rem .45rem;font-size:.78rem;font-weight:700;color:var(--paper);background:var(--tone);white-space:nowrap}
.absent .badge,.badge.absent{color:var(--tone);background:none;outline:1px dashed var(--tone);outline-offset:-1px}
.grid th:first-child{position:sticky;left:0;z-index:1;background:var(--paper);border-right:1px solid var(--rule);font-weight:600}
.grid td{padding:.15rem .25rem;text-align:center}.grid thead th{text-align:center;font-family:ui-monospace,monospace}
h2.entry{display:flex;flex-wrap:wrap;gap:.3rem .6rem;align-items:baseline;border-top:1px solid var(--rule);padding-top:1rem}
h2.entry span{overflow-wrap:anywhere}h2.entry small{font-weight:400;color:var(--dim)}
.records td{white-space:normal;vertical-align:top;overflow-wrap:break-word}.records td:nth-child(2){font-weight:600;white-space:nowrap}
.records .above td{border-bottom:0}.records .below td{padding-top:0;color:var(--dim)}.records .below td:nth-child(2){font-weight:400;white-space:normal;max-width:44rem}
.records a{color:inherit;text-decoration-color:var(--dim);text-underline-offset:.2em}
.gauge{display:block;position:relative;width:7rem;height:.55rem;margin-top:.45rem;background:var(--rule);border-radius:.28rem;overflow:hidden}
.gauge i{position:absolute;left:0;top:0;bottom:0;background:var(--tone)}
.gauge::after{content:"";position:absolute;left:50%;top:0;bottom:0;border-left:2px solid var(--ink)}
pre{overflow-x:auto;border:1px solid var(--rule);border-radius:.4rem;padding:.5rem .7rem;margin:.5rem 0;font:13px/1.45 ui-monospace,monospace}
details{margin:.6rem 0}summary{cursor:pointer;color:var(--dim)}
@media(max-width:44rem){.records,.records tbody,.records tr,.records td{display:block}.records tr.h{display:none}
.records tr{border-left:.25rem solid var(--tone);padding:.1rem 0 .1rem .7rem;margin:.7rem 0}
.records .above{margin-bottom:0}.records .below{margin-top:0}
.records td{border:0;padding:.1rem 0;text-align:left;overflow-wrap:anywhere}.records td:nth-child(2){white-space:normal}.records td:empty{display:none}
.records td[data-name]::before{content:attr(data-name) " ";color:var(--dim);font-size:.82rem;font-weight:400}
.records td:nth-child(2)::before{content:""}.gauge{width:100%;max-width:18rem;margin:.3rem 0}}
)";
}

void Page::Verdict(Tone tone, std::string_view word, std::string_view text) {
  EndFigures();
  judges_ = true;
  body_ += fmt::format("<div class=\"verdict {}\"><b>{}</b><p>{}</p></div>\n", ClassOf(tone),
                       EscapeMarkup(word), EscapeMarkup(text));
}

void Page::Entry(Tone tone, std::string_view word, std::string_view title,
                 std::string_view remark) {
  EndFigures();
  judges_ = true;
  section_ = EscapeMarkup(title);
  body_ += fmt::format(
      "<h2 class=\"entry {}\" id=\"{}\"><span class=\"badge\">{}</span> <span>{}</span> "
      "<small>{}</small></h2>\n",
      ClassOf(tone), Anchor(title), EscapeMarkup(word), EscapeMarkup(title), EscapeMarkup(remark));
}

void Page::Records(const std::vector<std::string>& header, const std::vector<Record>& records,
                   bool link) {
  EndFigures();
  judges_ = true;
  if (records.empty()) return;
  const bool gauges = std::any_of(records.begin(), records.end(),
                                  [](const Record& record) { return record.gauge.has_value(); });
  has_tables_ = true;
  body_ += "<div class=\"scroll\"><table class=\"records\">\n<tr class=\"h\">";
  for (const std::string& name : header) body_ += fmt::format("<th>{}</th>", EscapeMarkup(name));
  body_ += gauges ? "<th>against the limit</th></tr>\n" : "</tr>\n";
  for (const Record& record : records) {
    body_ += fmt::format("<tr class=\"{}{}\"><td><span class=\"badge\">{}</span></td>",
                         ClassOf(record.tone), record.remark.empty() ? "" : " above",
                         EscapeMarkup(record.word));
    for (size_t i = 0; i < record.cells.size(); ++i) {
      const std::string cell = EscapeMarkup(record.cells[i]);
      const std::string name = i + 1 < header.size() ? EscapeMarkup(header[i + 1]) : "";
      const bool linked = link && i == 0;
      body_ += linked ? fmt::format("<td data-name=\"{}\"><a href=\"#{}\">{}</a></td>", name,
                                    Anchor(record.cells[i]), cell)
                      : fmt::format("<td data-name=\"{}\">{}</td>", name, cell);
    }
    if (gauges) body_ += "<td>" + (record.gauge ? Gauge(*record.gauge) : "") + "</td>";
    body_ += "</tr>\n";
    if (record.remark.empty()) continue;
    body_ += fmt::format("<tr class=\"{} below\"><td></td><td colspan=\"{}\">{}</td></tr>\n",
                         ClassOf(record.tone), header.size() - 1 + (gauges ? 1 : 0),
                         EscapeMarkup(record.remark));
  }
  body_ += "</table></div>\n";
}

void Page::Grid(const std::vector<std::pair<std::string, std::string>>& header,
                const std::vector<GridRow>& rows) {
  EndFigures();
  judges_ = has_tables_ = true;
  body_ +=
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"verdicts\">"
      "<table class=\"grid\">\n<thead><tr><th></th>";
  for (const auto& [shown, whole] : header) {
    body_ += fmt::format("<th scope=\"col\" title=\"{}\">{}</th>", EscapeMarkup(whole),
                         EscapeMarkup(shown));
  }
  body_ += "</tr></thead>\n<tbody>\n";
  for (const GridRow& row : rows) {
    body_ += fmt::format("<tr><th scope=\"row\">{}</th>", EscapeMarkup(row.name));
    for (const GridRow::Cell& cell : row.cells) {
      body_ += fmt::format("<td class=\"{}\"><span class=\"badge\" title=\"{}\">{}</span></td>",
                           ClassOf(cell.tone), EscapeMarkup(cell.tip), EscapeMarkup(cell.word));
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody>\n</table></div>\n";
}

void Page::Command(std::string_view text) {
  EndFigures();
  judges_ = true;
  body_ += fmt::format("<pre>{}</pre>\n", EscapeMarkup(text));
}

void Page::Fold(std::string_view text) {
  EndFigures();
  judges_ = true;
  body_ += fmt::format("<details><summary>{}</summary>\n", EscapeMarkup(text));
}

void Page::EndFold() {
  EndFigures();
  body_ += "</details>\n";
}

}  // namespace kv::report
