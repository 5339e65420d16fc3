// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/core/base/number.h"
#include "lib/report/html.h"
#include "lib/report/html_style.h"

namespace kv::report {
namespace {

constexpr size_t kMostTableRows = 2000;

struct Unit {
  std::string_view name;
  double factor;  // of units that are written side by side
};
constexpr std::array<Unit, 14> kUnits = {{{"x", 1},
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

// The length of the number that a cell begins with, or 0.
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

// What a cell says if it is a number: with a unit, or with a remark such as an interval.
struct Number {
  bool is_number = false;
  size_t length = 0;           // of the number alone
  const Unit* unit = nullptr;  // after it, with nothing else
};

Number NumberIn(std::string_view cell) {
  Number number;
  number.length = NumberLength(cell);
  if (number.length == 0) return number;
  const std::string_view rest = cell.substr(number.length);
  const auto unit = std::find_if(kUnits.begin(), kUnits.end(),
                                 [&](const Unit& known) { return known.name == rest; });
  if (unit != kUnits.end()) number.unit = &*unit;
  number.is_number = rest.empty() || number.unit != nullptr || rest.substr(0, 2) == " (" ||
                     rest.substr(0, 3) == " +-" || rest.substr(0, 4) == " of ";
  return number;
}

struct TableColumn {
  bool is_number = false;
  const Unit* unit = nullptr;  // of all cells, for the header
  bool has_units = false;      // different ones: cells carry their values for the script
};

TableColumn ColumnOf(const std::vector<std::vector<std::string>>& rows, size_t c) {
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

}  // namespace

// The shadow at the right edge says that there is more: it lies below the paper that scrolls along.
std::string_view TableStyle() {
  return R"(:root{--edge:#1c243038}@media(prefers-color-scheme:dark){:root{--edge:#e6eaf045}}
.scroll{overflow-x:auto;margin:.5rem 0;background:linear-gradient(to left,var(--paper) 40%,transparent) 100% 0/2.4rem 100% no-repeat local,
linear-gradient(to left,var(--edge),transparent) 100% 0/1rem 100% no-repeat scroll}
table{border-collapse:separate;border-spacing:0;font-variant-numeric:tabular-nums;overflow-wrap:normal}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--rule);text-align:left;white-space:nowrap}
thead th{color:var(--dim);font-weight:600;font-size:.85rem;vertical-align:bottom}tbody th{font-weight:400}
.t th:first-child{position:sticky;left:0;z-index:1;background:var(--paper);border-right:1px solid var(--rule)}
th.n,td.n{text-align:right}tr.s td,tr.s th{font-weight:700}
.t thead button{font:inherit;color:inherit;background:none;border:0;padding:0;margin:0;cursor:pointer;text-align:inherit}
.t thead button::after{content:"\2195";opacity:.45;margin-left:.25em}
.t [aria-sort=ascending] button::after{content:"\2191";opacity:1}.t [aria-sort=descending] button::after{content:"\2193";opacity:1}
.find{display:block;color:var(--dim);font-size:.85rem;margin:.5rem 0 0}.find input{font:inherit;color:var(--ink);background:var(--paper);border:1px solid var(--dim);border-radius:.3rem;padding:.15rem .5rem;width:12rem}
@media(max-width:44rem){.t tbody th{max-width:9rem;white-space:normal;overflow-wrap:break-word}th,td{padding:.25rem .5rem}}
@media print{.find{display:none}.scroll{overflow:visible}}
)";
}

// Text alone is read and written, never markup. Blank cells stay last, whichever way.
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
  for (size_t c = 0; c < rows[0].size(); ++c) columns.push_back(ColumnOf(rows, c));
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

}  // namespace kv::report
