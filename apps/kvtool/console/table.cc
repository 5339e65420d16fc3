// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Lays out tables for a width: wrapped headers, shortened text, bands of columns, or paragraphs.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <set>

#include "apps/kvtool/console/console.h"
#include "lib/core/base/bytes.h"
#include "lib/fields/fields.h"

namespace kv {
namespace {

using TableRows = std::vector<std::vector<std::string>>;

constexpr size_t kGap = 2;         // columns between two cells
constexpr size_t kLeastText = 12;  // a shortened cell of this width is still readable

bool LooksNumeric(std::string_view cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 ||
                           ((cell[0] == '-' || cell[0] == '+') && cell.size() < 12));
}

// Returns which columns hold numbers; these are never shortened.
std::vector<bool> NumericColumns(const TableRows& rows) {
  std::vector<bool> numeric;
  for (size_t r = 0; r < rows.size(); ++r) {
    numeric.resize(std::max(numeric.size(), rows[r].size()), true);
    for (size_t c = 0; r > 0 && c < rows[r].size(); ++c) {
      if (!rows[r][c].empty() && !LooksNumeric(rows[r][c])) numeric[c] = false;
    }
  }
  return numeric;
}

// Breaks the header into as many rows as needed, so that each column is at most as wide as its
// cells, or as the longest word of its header.
TableRows WithBrokenHead(const TableRows& rows) {
  TableRows head;
  for (size_t c = 0; c < rows[0].size(); ++c) {
    size_t width = 0;
    for (size_t r = 1; r < rows.size(); ++r) {
      if (c < rows[r].size()) width = std::max(width, ColumnsIn(rows[r][c]));
    }
    const std::string broken = Wrapped(rows[0][c], std::max<size_t>(width, 1), 0);
    size_t line = 0;
    for (size_t begin = 0; begin <= broken.size(); ++line) {
      const size_t end = std::min(broken.find('\n', begin), broken.size());
      if (head.size() <= line) head.emplace_back(rows[0].size());
      head[line][c] = broken.substr(begin, end - begin);
      begin = end + 1;
    }
  }
  head.insert(head.end(), rows.begin() + 1, rows.end());
  return head;
}

std::vector<size_t> ColumnWidths(const TableRows& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], ColumnsIn(row[c]));
  }
  return widths;
}

size_t AddWidths(const std::vector<size_t>& widths) {
  size_t total = widths.empty() ? 0 : (widths.size() - 1) * kGap;
  for (const size_t width : widths) total += width;
  return total;
}

// Takes columns from the widest texts until the table fits. Returns false if it cannot.
bool Shrink(const std::vector<bool>& numeric, size_t width, std::vector<size_t>& widths) {
  while (AddWidths(widths) > width) {
    size_t widest = widths.size();
    for (size_t c = 0; c < widths.size(); ++c) {
      if (numeric[c] || widths[c] <= kLeastText) continue;
      if (widest == widths.size() || widths[c] > widths[widest]) widest = c;
    }
    if (widest == widths.size()) return false;
    --widths[widest];
  }
  return true;
}

std::string TableLines(const TableRows& rows, const std::vector<size_t>& widths,
                       const std::vector<bool>& numeric, std::string_view indent) {
  std::string text;
  for (const auto& row : rows) {
    std::string line(indent);
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string cell = Shortened(row[c], widths[c]);
      const std::string padding(widths[c] - ColumnsIn(cell), ' ');
      if (c > 0) line.append(kGap, ' ');
      line += numeric[c] ? padding + cell : cell + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

// Returns how many first columns distinguish the rows: "0 K", "0 V" need two.
size_t ColumnsOfNames(const TableRows& rows) {
  constexpr size_t kMost = 3;
  for (size_t count = 1; count < kMost && count < rows[0].size(); ++count) {
    std::set<std::vector<std::string>> names;
    for (size_t r = 1; r < rows.size(); ++r) {
      const size_t has = std::min(count, rows[r].size());
      names.emplace(rows[r].begin(), rows[r].begin() + static_cast<std::ptrdiff_t>(has));
    }
    if (names.size() + 1 == rows.size()) return count;
  }
  return std::min(kMost, rows[0].size());
}

// Returns several tables below each other, each with the first columns and as many others as fit.
// Returns "" if not even one fits.
std::string Banded(const TableRows& rows, const std::vector<bool>& numeric, size_t room,
                   std::string_view indent) {
  const size_t names = ColumnsOfNames(rows);
  const std::vector<size_t> widths = ColumnWidths(WithBrokenHead(rows));
  size_t fixed = 0;
  for (size_t c = 0; c < names; ++c) fixed += widths[c] + kGap;
  std::string text;
  for (size_t begin = names; begin < widths.size();) {
    std::vector<size_t> columns(names);
    std::iota(columns.begin(), columns.end(), size_t{0});
    size_t total = fixed;
    while (begin < widths.size() && total + widths[begin] <= room) {
      total += widths[begin] + kGap;
      columns.push_back(begin++);
    }
    if (columns.size() == names) return {};
    TableRows band;
    std::vector<bool> of_numbers;
    for (const size_t c : columns) of_numbers.push_back(numeric[c]);
    for (const auto& row : rows) {
      band.emplace_back();
      for (const size_t c : columns) band.back().push_back(c < row.size() ? row[c] : "");
    }
    const TableRows broken = WithBrokenHead(band);
    text +=
        (text.empty() ? "" : "\n") + TableLines(broken, ColumnWidths(broken), of_numbers, indent);
  }
  return text;
}

// Returns a paragraph for each row: its first cell, and the others below it, each after its header.
std::string StackedRows(const TableRows& rows, size_t width, std::string_view indent) {
  std::string text;
  for (size_t r = 1; r < rows.size(); ++r) {
    for (size_t c = 0; c < rows[r].size(); ++c) {
      if (rows[r][c].empty()) continue;
      std::string line(indent);
      if (c > 0) line += "  ";
      if (!rows[0][c].empty()) line += rows[0][c] + ": ";
      text += Wrapped(line + rows[r][c], width, 2) + "\n";
    }
  }
  return text;
}

// Returns true if the first column still tells rows apart when it is cut to `width`.
bool KeepsNames(const TableRows& rows, size_t width) {
  std::set<std::string> whole, cut;
  for (const auto& row : rows) {
    whole.insert(row[0]);
    cut.insert(Shortened(row[0], width));
  }
  return whole.size() == cut.size();
}

}  // namespace

Table::Table(const TextTable& table) : Table(table.head) {
  for (const std::vector<std::string>& row : table.rows) Row(row);
}

void Table::Row(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Text(std::string_view indent) const {
  return TextFor(TerminalColumns(STDOUT_FILENO), indent);
}

std::string Table::TextFor(size_t width, std::string_view indent) const {
  const std::vector<bool> numeric = NumericColumns(rows_);
  std::vector<size_t> widths = ColumnWidths(rows_);
  const size_t room = width - std::min(width, indent.size());
  if (width == kAnyWidth || AddWidths(widths) <= room)
    return TableLines(rows_, widths, numeric, indent);
  const TableRows broken = WithBrokenHead(rows_);
  widths = ColumnWidths(broken);
  const std::string banded = Banded(rows_, numeric, room, indent);
  if (Shrink(numeric, room, widths) && (banded.empty() || KeepsNames(rows_, widths[0])))
    return TableLines(broken, widths, numeric, indent);
  return banded.empty() ? StackedRows(rows_, width, indent) : banded;
}

}  // namespace kv
