// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/utf8.h"
#include "lib/study/gate/log_files.h"

namespace kv::mnn::logs {

// Reads and writes words and numbers as the engine's tools do, which are written in Python.

using gate::Json;
using gate::ParseJson;
using gate::TextAt;
using gate::TruthAt;

std::string_view Strip(std::string_view text);
std::string_view StripAll(std::string_view text, char c);
bool Contains(std::string_view text, std::string_view part);
// Visits the lines without their ends, as str.splitlines finds them (ASCII line ends only).
void ForEachLine(std::string_view text, const std::function<void(std::string_view)>& use);

// Removes bytes that are not UTF-8, as errors="ignore" does.
std::string OnlyUtf8(std::string_view text);
std::string_view FirstCodePoints(std::string_view text, size_t count);

// Returns the number that the tools read: the first match of [-+]?[0-9]*\.?[0-9]+, which reads
// "1e-05" as 1. With `words`, texts such as "nan" and "inf" are numbers too.
double LooseNumber(std::string_view text, double otherwise = 0, bool words = false);
// Returns the first complete number in the text, with its exponent.
std::optional<double> FirstNumber(std::string_view text);
// Returns the whole text as a number.
std::optional<double> WholeNumber(std::string_view text);

// Returns true if a word is a number that is not finite, such as "nan", "-inf", "1e999" or
// "-1.#IND".
bool IsNonFinite(std::string_view word);
bool HasNonFinite(std::string_view cell);

// Counts in logs are below this; a double holds such whole numbers exactly.
inline constexpr double kLargestWhole = 1e15;
// Largest part of a cell that messages show.
inline constexpr size_t kShownCell = 40;

// Prints "%.4f" as Python does, which prints every NaN as "nan".
std::string Fixed(double value, int digits);
std::string_view Bool(bool value);                              // true, false
std::string PythonText(std::string_view text);                  // 'text'
std::string PythonValue(const Json& value);                     // [0, 1], None, True
std::string PythonList(const std::vector<std::string>& texts);  // ['a', 'b']

// Returns the number under a key. Texts and booleans convert as in Python; any other value gives
// `otherwise`.
double NumberAt(const Json& object, std::string_view key, double otherwise = 0);
// Returns the number, or null.
inline Json NumberJson(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// State of a log's table apart from the added rows. The engine's parser drops rows silently.
struct TableState {
  bool has_header = false;
  size_t rows = 0;  // complete rows
  size_t cut = 0;   // rows with another width than the header, or without their end
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
