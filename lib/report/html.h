// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/fields/fields.h"
#include "lib/report/svg.h"

namespace kv::report {

// A verdict. A word always accompanies the colour.
enum class Tone { kGood, kBad, kUnsure, kOpen, kAbsent };

// One row in a list of judged things.
struct Record {
  Tone tone = Tone::kOpen;
  std::string word;                  // such as "pass"
  std::vector<std::string> cells;    // one per column after the word
  std::optional<double> gauge = {};  // value / limit: a bar whose middle is the limit
  std::string remark = {};           // shown on a separate line below the cells
};

// One row of a grid of judged things, a cell for each column.
struct GridRow {
  struct Cell {
    Tone tone = Tone::kAbsent;
    std::string word, tip;
  };
  std::string name;
  std::vector<Cell> cells;
};

// A picture of a page, for files.
struct PictureFile {
  std::string name;  // "error-against-ratio.svg", different for each picture of a page
  Picture picture;
  std::string caption;

  std::string Text() const { return picture.File(caption); }
};

// The command and the inputs of a page, shown at its end.
struct Origin {
  std::string program;              // "kvtool 0.2.0, commit 0123abc"; empty: the page does not say
  std::string command;              // quoted for a shell
  std::vector<std::string> inputs;  // name, size and hash of each
};

// Builds one self-contained HTML page with inline style and SVG, without network access. It works
// without its script, which sorts and filters tables. Arguments are plain text and are escaped
// here.
class Page {
 public:
  explicit Page(std::string_view title, std::string_view subtitle = {});

  void Heading(std::string_view text);
  void Paragraph(std::string_view text);
  // Adds short facts side by side, such as {"ratio", "2.07x"}, below the name of their subject,
  // such as a run.
  void Facts(const std::vector<std::pair<std::string, std::string>>& facts,
             std::string_view of = {});
  // Adds a figure. Consecutive figures share a row if the screen is wide enough.
  void Figure(const Picture& picture, std::string_view caption);
  // Makes the last figure the one for use in a paper (by default the first one). Its caption has to
  // name model, trace and budget: the subtitle, and `more`.
  void Feature(std::string_view more = {});
  // Adds `more` to the caption of the page's figure.
  void FeatureText(std::string_view more) { feature_text_ = more; }
  // Adds a table whose first row is the header and whose first column stays visible. Columns of
  // numbers are right-aligned; a unit that all their cells have ("x", "%", "KiB") moves to the
  // header. `strong` lists rows to emphasise, counted from 0 without the header. Rows beyond the
  // first 2000 are counted, not shown.
  void Table(const std::vector<std::vector<std::string>>& rows,
             const std::vector<size_t>& strong = {});
  void Table(TextTable table, const std::vector<size_t>& strong = {});
  // Adds a table, folded away if it has more than a few rows: a list that few readers read through.
  void LongTable(TextTable table, std::string_view what, const std::vector<size_t>& strong = {});
  // Adds a list of remarks, or nothing if it is empty.
  void Notes(std::string_view heading, const std::vector<std::string>& notes);

  // Adds a large word and a sentence, for the top of a page.
  void Verdict(Tone tone, std::string_view word, std::string_view text);
  // Adds a heading with its word. Records with the same title can link to it.
  void Entry(Tone tone, std::string_view word, std::string_view title, std::string_view remark);
  // Adds records, shown as a table on wide screens and as cards on narrow ones. The header's first
  // name is that of the word column. With `link`, the cell after the word links to the entry of
  // that title.
  void Records(const std::vector<std::string>& header, const std::vector<Record>& records,
               bool link = false);
  // Adds a table of coloured words with a row for each name. The names stay visible while the table
  // scrolls. A header has a short text, which is shown, and a longer one.
  void Grid(const std::vector<std::pair<std::string, std::string>>& header,
            const std::vector<GridRow>& rows);
  // Adds a command line unchanged.
  void Command(std::string_view text);
  // Folds away everything that follows, until EndFold.
  void Fold(std::string_view text);
  void EndFold();

  std::string Text(const Origin& origin = {}) const;
  // The figures, in their order.
  const std::vector<PictureFile>& pictures() const { return pictures_; }
  // Returns the page's figure with a self-contained caption, or nothing.
  std::optional<PictureFile> Featured(std::string_view program) const;

 private:
  void EndFigures();

  std::string title_, subtitle_, body_;
  std::string section_;  // the last heading
  std::vector<PictureFile> pictures_;
  size_t featured_ = 0;
  std::string feature_text_;
  bool in_figures_ = false, judges_ = false, has_tables_ = false;
};

}  // namespace kv::report
