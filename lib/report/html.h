// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kv::report {

// One self-contained page: inline style and SVG, no script, no network. Text arguments are plain
// text and are escaped here; only Figure takes markup, from svg.h.
class Page {
 public:
  explicit Page(std::string_view title, std::string_view subtitle = {});

  void Heading(std::string_view text);
  void Paragraph(std::string_view text);
  // Short facts side by side: {"ratio", "2.07x"}.
  void Facts(const std::vector<std::pair<std::string, std::string>>& facts);
  // Figures that follow each other share a row where the screen is wide enough.
  void Figure(std::string_view svg, std::string_view caption, bool wide = false);
  // The first row is the header; cells that look like numbers are right-aligned. `strong` marks
  // rows (from 0, the header not counted).
  void Table(const std::vector<std::vector<std::string>>& rows,
             const std::vector<size_t>& strong = {});
  // A list of remarks; nothing for an empty one.
  void Notes(std::string_view heading, const std::vector<std::string>& notes);
  void Footer(std::string_view text);

  std::string Text() const;

 private:
  void EndFigures();

  std::string title_, body_;
  bool in_figures_ = false;
};

}  // namespace kv::report
