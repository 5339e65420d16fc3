// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kv::mnn::logs {

// What the engine's parser makes of a log's table without a word.
struct TableState {
  bool has_header = false;
  size_t rows = 0;  // whole ones
  size_t cut = 0;   // of another width than the header, or without their end: dropped
};
TableState StateOfTable(std::string_view text);

// What llm_bench measured: a row per combination of prompt and generation length. Cells are texts
// such as "6.00 ± 0.05", as the engine printed them.
class BenchTable {
 public:
  // The rows of the markdown table in a log, by the rules of the engine's parser: lines that start
  // with '|', the first one is the header, the second is skipped, rows of another width are
  // dropped. Returns how many rows were added.
  size_t AddMarkdown(std::string_view text, std::string_view log_file);
  // llm_bench's JSON output: one document, or one per line. The cells are what the markdown table
  // would show. Throws kBadText.
  size_t AddJson(std::string_view text, std::string_view log_file);
  // A table as the engine's parser writes it. Throws kBadText, kLimit.
  static BenchTable FromCsv(std::string_view text);

  // The columns that occur: the known ones in the parser's order, then the others by name.
  std::vector<std::string> Columns() const;
  bool HasColumn(std::string_view name) const { return Find(name) < columns_.size(); }
  size_t size() const { return rows_.size(); }
  // Empty where the row's log had no such column.
  std::string_view Cell(size_t row, std::string_view column) const;
  // Whether the row is the header of a second run in one log, which the parser takes for a row.
  bool IsHeaderAgain(size_t row) const;

 private:
  using Row = std::vector<std::string>;

  size_t Find(std::string_view name) const;
  size_t Column(std::string_view name);  // added if new
  Row& NewRow();
  void Put(Row& row, std::string_view column, std::string_view cell);

  std::vector<std::string> columns_;  // in order of appearance
  std::vector<Row> rows_;             // each at most as long as columns_
  uint64_t cells_ = 0;
};

}  // namespace kv::mnn::logs
