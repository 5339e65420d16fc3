// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kv::report {

// How something was judged. Colour never says it alone: a word stands beside.
enum class Tone { kGood, kBad, kOpen };

// One row of a list of judged things.
struct Record {
  Tone tone = Tone::kOpen;
  std::string word;                  // "pass"
  std::vector<std::string> cells;    // one per column after the word
  std::optional<double> gauge = {};  // value over its limit: a bar with the limit in its middle
  std::string remark = {};           // a line of its own below the cells
};

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

  // A large word and a sentence, for the top of a page.
  void Verdict(Tone tone, std::string_view word, std::string_view text);
  // A heading with its word; records with that title can link to it.
  void Entry(Tone tone, std::string_view word, std::string_view title, std::string_view remark);
  // A table on wide screens, a list of cards on narrow ones. The first name in the header is that
  // of the words; cells of the first column after them link to the entry of that title, if `link`.
  void Records(const std::vector<std::string>& header, const std::vector<Record>& records,
               bool link = false);
  // A command line, as is.
  void Command(std::string_view text);
  // What follows is folded away until EndFold.
  void Fold(std::string_view text);
  void EndFold();

  std::string Text() const;

 private:
  void EndFigures();

  std::string title_, body_;
  bool in_figures_ = false, judges_ = false;
};

}  // namespace kv::report
