// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"

namespace kv::report {
namespace {

std::string_view NameClass(Tone tone) {
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

// Returns a name for use in an address: letters and digits, all else as '-'.
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

constexpr size_t kMostTableRows = 2000;

struct ColumnUnit {
  std::string_view name;
  double factor;  // size relative to the other units of its kind
};
constexpr std::array<ColumnUnit, 14> kUnits = {{{"x", 1},
                                                {"%", 1},
                                                {" B", 1},
                                                {" KiB", 1024},
                                                {" MiB", 1048576},
                                                {" GiB", 1073741824},
                                                {" TiB", 1099511627776},
                                                {" PiB", 1125899906842624},
                                                {" nats", 1},
                                                {" us", 1e-6},
                                                {" ms", 1e-3},
                                                {" s", 1},
                                                {" tokens", 1},
                                                {" MiB/s", 1}}};

bool IsBlank(std::string_view cell) { return cell.empty() || cell == "-"; }

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// true: units differ, so each cell has its value for the script
size_t NumberLength(std::string_view cell) {
  size_t at = 0, digits = 0;
  const auto skip_digits = [&] {
    const size_t begin = at;
    while (at < cell.size() && IsDigit(cell[at])) ++at;
    digits += at - begin;
  };
  if (at < cell.size() && (cell[at] == '-' || cell[at] == '+' || cell[at] == '<')) ++at;
  skip_digits();
  if (at < cell.size() && cell[at] == '.') ++at;
  skip_digits();
  if (digits == 0) return 0;
  if (at + 1 < cell.size() && cell[at] == 'e') {
    const size_t sign = cell[at + 1] == '-' || cell[at + 1] == '+' ? 2 : 1;
    if (at + sign < cell.size() && IsDigit(cell[at + sign])) {
      at += sign;
      skip_digits();
    }
  }
  return at;
}

// Value of a numeric cell: with a unit, or with a remark such as an interval.
struct Number {
  bool is_number = false;
  size_t length = 0;                 // only the number
  const ColumnUnit* unit = nullptr;  // unit of the number, if nothing else follows it
};

Number NumberIn(std::string_view cell) {
  Number number;
  number.length = NumberLength(cell);
  if (number.length == 0) return number;
  const std::string_view rest = cell.substr(number.length);
  const auto unit = std::find_if(kUnits.begin(), kUnits.end(),
                                 [&](const ColumnUnit& known) { return known.name == rest; });
  if (unit != kUnits.end()) number.unit = &*unit;
  number.is_number = rest.empty() || number.unit != nullptr || rest.substr(0, 2) == " (" ||
                     rest.substr(0, 3) == " +-" || rest.substr(0, 4) == " of ";
  return number;
}

struct TableColumn {
  bool is_number = false;
  const ColumnUnit* unit = nullptr;  // unit of all cells, for the header
  bool has_units = false;            // different units: cells carry their values for the script
};

TableColumn ReadColumn(const std::vector<std::vector<std::string>>& rows, size_t c) {
  TableColumn column;
  bool all_numbers = true, same_unit = true, any = false;
  for (size_t r = 1; r < rows.size(); ++r) {
    if (c >= rows[r].size() || IsBlank(rows[r][c])) continue;
    const Number number = NumberIn(rows[r][c]);
    all_numbers = all_numbers && number.is_number;
    same_unit = same_unit && (!any || number.unit == column.unit);
    if (!any) column.unit = number.unit;
    column.has_units = column.has_units || number.unit != nullptr;
    any = true;
  }
  column.is_number = any && all_numbers;
  if (!column.is_number || !same_unit) column.unit = nullptr;
  column.has_units = column.is_number && column.has_units && column.unit == nullptr;
  return column;
}

std::string TableHead(const TableColumn& column, const std::string& name) {
  std::string text = EscapeMarkup(name);
  if (column.unit != nullptr) {
    const size_t blank = column.unit->name[0] == ' ' ? 1 : 0;
    text += fmt::format(", {}", column.unit->name.substr(blank));
  }
  return fmt::format("<th scope=\"col\"{}>{}</th>", column.is_number ? " class=\"n\"" : "", text);
}

std::string TableCell(const TableColumn& column, const std::string& cell, bool is_first) {
  std::string_view shown = cell;
  std::string attributes = column.is_number ? " class=\"n\"" : "";
  const Number number = column.is_number ? NumberIn(cell) : Number{};
  if (number.unit != nullptr && column.unit != nullptr) {
    shown = shown.substr(0, number.length);
  } else if (number.unit != nullptr && column.has_units) {
    std::string_view digits = shown.substr(shown.starts_with('+') ? 1 : 0);
    const double value = TakeNumber<double>(digits).value_or(0);
    attributes += fmt::format(" data-v=\"{:.6g}\"", value * number.unit->factor);
  }
  return is_first ? fmt::format("<th scope=\"row\"{}>{}</th>", attributes, EscapeMarkup(shown))
                  : fmt::format("<td{}>{}</td>", attributes, EscapeMarkup(shown));
}

// The shadow at the right edge, which the scrolling background covers, shows that there is more.
std::string_view TableStyle() {
  return R"(:root{--edge:#1c243038}@media(prefers-color-scheme:dark){:root{--edge:#e6eaf045}}
.scroll{overflow-x:auto;margin:.5rem 0;background:linear-gradient(to left,var(--paper) 40%,transparent) 100% 0/2.4rem 100% no-repeat local,
linear-gradient(to left,var(--edge),transparent) 100% 0/1rem 100% no-repeat scroll}
table{border-collapse:separate;border-spacing:0;font-variant-numeric:tabular-nums;overflow-wrap:normal}
th,td{padding:.25rem .5rem;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top}
.t td,.t th{font-size:.85rem;max-width:22rem}td.n,tbody th.n{white-space:nowrap}
thead th{color:var(--dim);font-weight:600;font-size:.82rem;vertical-align:bottom}tbody th{font-weight:400}
.t th:first-child{position:sticky;left:0;z-index:1;background:var(--paper);border-right:1px solid var(--rule)}
th.n,td.n{text-align:right}tr.s td,tr.s th{font-weight:700}
.t thead button{font:inherit;color:inherit;background:none;border:0;padding:0;margin:0;cursor:pointer;text-align:inherit}
.t thead button::after{content:"\2195";opacity:.45;margin-left:.25em}
.t [aria-sort=ascending] button::after{content:"\2191";opacity:1}.t [aria-sort=descending] button::after{content:"\2193";opacity:1}
.find{display:block;color:var(--dim);font-size:.85rem;margin:.5rem 0 0}.find input{font:inherit;color:var(--ink);background:var(--paper);border:1px solid var(--dim);border-radius:.3rem;padding:.15rem .5rem;width:12rem}
.t tbody th:not(.n){min-width:8rem}
@media(max-width:44rem){.t tbody th:not(.n){min-width:5rem}.t tbody th{max-width:11rem;overflow-wrap:break-word}.t tbody th:nth-last-child(2){max-width:none}.t td{max-width:none;white-space:nowrap}}
@media print{.find{display:none}.scroll{overflow:visible}}
)";
}

// Only text is read and written, never markup. Blank cells stay last in either direction.
std::string_view TableScript() {
  return R"(<script>
for(const table of document.querySelectorAll("table.t")){
const body=table.tBodies[0],rows=[...body.rows],heads=[...table.tHead.rows[0].cells];
if(rows.length<2)continue;
const text=(row,i)=>row.cells[i]?row.cells[i].textContent:"",blank=t=>t===""||t==="-";
const value=(row,i)=>parseFloat((row.cells[i]&&row.cells[i].dataset.v)||text(row,i).replace("<",""));
heads.forEach((head,i)=>{const button=document.createElement("button");button.type="button";
button.append(...head.childNodes);head.append(button);
button.onclick=()=>{const down=head.getAttribute("aria-sort")==="ascending";
heads.forEach(other=>other.removeAttribute("aria-sort"));head.setAttribute("aria-sort",down?"descending":"ascending");
const compare=head.classList.contains("n")?(a,b)=>value(a,i)-value(b,i):(a,b)=>text(a,i).localeCompare(text(b,i),"en",{numeric:true});
body.append(...rows.slice().sort((a,b)=>blank(text(a,i))-blank(text(b,i))||(down?-1:1)*compare(a,b)))}});
if(rows.length<8)continue;
const label=document.createElement("label"),input=document.createElement("input"),count=document.createElement("output");
label.className="find";input.type="search";label.append("Filter ",input," ",count);
input.oninput=()=>{const wanted=input.value.toLowerCase();let shown=0;
for(const row of rows)shown+=!(row.hidden=!row.textContent.toLowerCase().includes(wanted));
count.value=wanted?shown+" of "+rows.length:""};
table.parentNode.before(label)}
</script>
)";
}

constexpr std::string_view kStyle = R"(*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:72rem;margin:0 auto;padding:1.2rem 1rem 3rem;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.2rem 0 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.sub{color:var(--dim);margin:0 0 1rem}p{max-width:46rem;margin:.4rem 0}
.of{margin:1rem 0 -.6rem;color:var(--dim);font-size:.85rem}.facts{display:flex;flex-wrap:wrap;gap:.6rem;margin:1rem 0;padding:0}
.facts div{border:1px solid var(--rule);border-radius:.5rem;padding:.45rem .8rem;min-width:7rem}
.facts dt{color:var(--dim);font-size:.8rem}.facts dd{margin:0;font-size:1.15rem;font-weight:600}
.row{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22.4rem),1fr));gap:.5rem 1rem}
figure{margin:.5rem 0;max-width:27rem}svg{width:100%;height:auto;display:block}
figcaption{color:var(--dim);font-size:.85rem;max-width:46rem}
ul{padding-left:1.2rem}footer{color:var(--dim);font-size:.85rem;margin-top:2rem}
@media print{main{max-width:none}}@media(max-width:26rem){main{padding-inline:.5rem}}
)";

// Turns "Error against ratio" into "error-against-ratio".
std::string FileName(std::string_view title) {
  std::string name;
  for (const char c : title.substr(0, 60)) {
    const bool plain = (Lower(c) >= 'a' && Lower(c) <= 'z') || IsDigit(c);
    if (plain) name += Lower(c);
    if (!plain && !name.empty() && name.back() != '-') name += '-';
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "picture" : name;
}

}  // namespace

void Page::Verdict(Tone tone, std::string_view word, std::string_view text) {
  EndFigures();
  judges_ = true;
  body_ += fmt::format("<div class=\"verdict {}\"><b>{}</b><p>{}</p></div>\n", NameClass(tone),
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
      NameClass(tone), Anchor(title), EscapeMarkup(word), EscapeMarkup(title),
      EscapeMarkup(remark));
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
                         NameClass(record.tone), record.remark.empty() ? "" : " above",
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
                         NameClass(record.tone), header.size() - 1 + (gauges ? 1 : 0),
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
                           NameClass(cell.tone), EscapeMarkup(cell.tip), EscapeMarkup(cell.word));
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

void Page::LongTable(TextTable table, std::string_view what, const std::vector<size_t>& strong) {
  constexpr size_t kMostOpenRows = 12;
  const bool folds = table.rows.size() > kMostOpenRows;
  if (folds) Fold(fmt::format("{} {}", table.rows.size(), what));
  Table(std::move(table), strong);
  if (folds) EndFold();
}

void Page::Table(TextTable table, const std::vector<size_t>& strong) {
  table.rows.insert(table.rows.begin(), std::move(table.head));
  Table(table.rows, strong);
}

void Page::Table(const std::vector<std::vector<std::string>>& rows,
                 const std::vector<size_t>& strong) {
  EndFigures();
  if (rows.empty()) return;
  has_tables_ = true;
  std::vector<TableColumn> columns;
  for (size_t c = 0; c < rows[0].size(); ++c) columns.push_back(ReadColumn(rows, c));
  body_ += fmt::format(
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table class=\"t\">\n"
      "<thead><tr>",
      section_.empty() ? "table" : section_);
  for (size_t c = 0; c < columns.size(); ++c) body_ += TableHead(columns[c], rows[0][c]);
  body_ += "</tr></thead>\n<tbody>\n";
  const size_t end = std::min(rows.size(), kMostTableRows + 1);
  for (size_t r = 1; r < end; ++r) {
    const bool is_strong = std::count(strong.begin(), strong.end(), r - 1) != 0;
    body_ += is_strong ? "<tr class=\"s\">" : "<tr>";
    for (size_t c = 0; c < columns.size(); ++c) {
      body_ += TableCell(columns[c], c < rows[r].size() ? rows[r][c] : std::string(), c == 0);
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody>\n</table></div>\n";
  if (end < rows.size()) Paragraph(fmt::format("{} more rows are not shown.", rows.size() - end));
}

Page::Page(std::string_view title, std::string_view subtitle)
    : title_(EscapeMarkup(title)), subtitle_(subtitle) {
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

void Page::Facts(const std::vector<std::pair<std::string, std::string>>& facts,
                 std::string_view of) {
  EndFigures();
  if (!of.empty()) body_ += fmt::format("<p class=\"of\">{}</p>\n", EscapeMarkup(of));
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
  pictures_.push_back({std::move(file), picture, std::string(caption)});
}

void Page::Feature(std::string_view more) {
  featured_ = pictures_.size() - 1;
  feature_text_ = more;
}

std::optional<PictureFile> Page::Featured(std::string_view program) const {
  if (pictures_.empty()) return std::nullopt;
  const PictureFile& file = pictures_[featured_];
  std::string text = file.caption;
  for (const std::string_view part :
       {std::string_view(subtitle_), std::string_view(feature_text_), program}) {
    if (part.empty()) continue;
    if (!text.empty()) text += text.back() == '.' ? " " : ". ";
    text += part;
  }
  text += ".";
  return PictureFile{file.name, file.picture.WithCaption(text), text};
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
    footer = fmt::format("<footer><p>Made by {} with</p><p><code>{}</code></p>\n",
                         EscapeMarkup(origin.program), EscapeMarkup(origin.command));
    for (const std::string& input : origin.inputs) {
      footer += fmt::format("<p>{}</p>\n", EscapeMarkup(input));
    }
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
