// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kv::mnn::logs {

// State of a log's table beside the rows that were added. The engine's parser drops rows silently.
struct TableState {
  bool has_header = false;
  size_t rows = 0;  // complete rows
  size_t cut = 0;   // rows of another width than the header, or without their end
};

inline constexpr std::string_view kSpeedColumn = "speed(tok/s)";

// The table of llm_bench, with a row per combination of prompt and generation length. Cells are
// texts such as "6.00 ± 0.05", as the engine printed them.
class BenchTable {
 public:
  // Adds the rows of the markdown table in a log, by the rules of the engine's parser: it takes the
  // lines that start with '|', the first as the header, skips the second, and drops rows of another
  // width. Returns the number of rows added.
  size_t AddMarkdown(std::string_view text, std::string_view log_file, TableState* state = nullptr);
  // Adds the rows of llm_bench's JSON output: one document, or one per line. The cells are those of
  // the markdown table. Throws kBadText.
  size_t AddJson(std::string_view text, std::string_view log_file);
  // Reads a table as the engine's parser writes it. Throws kBadText, kLimit.
  static BenchTable FromCsv(std::string_view text);

  // Returns the columns that occur: those that the parser knows in its order, then the others by
  // name.
  std::vector<std::string> Columns() const;
  bool HasColumn(std::string_view name) const { return Find(name) < columns_.size(); }
  size_t size() const { return rows_.size(); }
  // Returns a cell; "" if the row's log had no such column.
  std::string_view Cell(size_t row, std::string_view column) const;
  // Returns true if the row is the header of a second run in the same log, which the parser takes
  // for a row.
  bool IsHeaderAgain(size_t row) const;

 private:
  using Row = std::vector<std::string>;

  size_t Find(std::string_view name) const;
  size_t Column(std::string_view name);  // adds the column if it is new
  // Sets a cell of the last row.
  void Put(std::string_view column, std::string_view cell);

  std::vector<std::string> columns_;  // in order of appearance
  std::vector<Row> rows_;             // each at most as long as columns_
  uint64_t cells_ = 0;
};

}  // namespace kv::mnn::logs
