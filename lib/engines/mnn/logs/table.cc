// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/core/base/json.h"
#include "lib/engines/mnn/logs/text.h"

namespace kv::mnn::logs {
namespace {

// A text of the log may name any number of columns in every row: what is kept of it is bounded.
constexpr size_t kMaxColumns = 512;
constexpr uint64_t kMaxCells = 1u << 20;

constexpr std::array<std::string_view, 26> kKnownColumns = {"model",
                                                            "modelSize",
                                                            "backend",
                                                            "threads",
                                                            "llm_demo",
                                                            "speed(tok/s)",
                                                            "h2o_keep",
                                                            "h2o_lossy",
                                                            "h2o_lossless",
                                                            "h2o_target_keep_effective",
                                                            "h2o_floor_keep",
                                                            "h2o_quantized_keep",
                                                            "h2o_evict_us",
                                                            "h2o_codec_us",
                                                            "h2o_lossless_raw_mb",
                                                            "h2o_lossless_comp_mb",
                                                            "h2o_lossless_comp_us",
                                                            "h2o_lossless_decomp_us",
                                                            "h2o_lossless_queue_peak",
                                                            "h2o_lossless_fallback",
                                                            "h2o_lossless_backpressure_skip",
                                                            "h2o_lossless_async_queue_peak",
                                                            "h2o_lossless_async_wait_us",
                                                            "h2o_lossless_decode_cache_hit",
                                                            "h2o_lossless_decode_cache_miss",
                                                            "log_file"};

size_t Rank(std::string_view column) {
  return static_cast<size_t>(std::find(kKnownColumns.begin(), kKnownColumns.end(), column) -
                             kKnownColumns.begin());
}

std::vector<std::string_view> SplitRow(std::string_view line) {
  line = StripAll(line, '|');
  std::vector<std::string_view> cells;
  for (;;) {
    const size_t bar = line.find('|');
    cells.push_back(Strip(line.substr(0, bar)));
    if (bar == std::string_view::npos) return cells;
    if (cells.size() == kMaxColumns) {
      throw Error(Finding::kLimit, fmt::format("a table has more than {} columns", kMaxColumns));
    }
    line.remove_prefix(bar + 1);
  }
}

bool IsRule(const std::vector<std::string_view>& cells) {
  return std::all_of(cells.begin(), cells.end(), [](std::string_view cell) {
    return !cell.empty() && cell.find_first_not_of("-:") == std::string_view::npos;
  });
}

// The next record of a CSV text: quoted fields may hold commas, quotes ("") and line ends.
bool NextRecord(std::string_view& text, std::vector<std::string>& fields) {
  fields.clear();
  if (text.empty()) return false;
  std::string field;
  bool quoted = false, at_start = true, any = false;
  size_t i = 0;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      const bool pair = c == '"' && i + 1 < text.size() && text[i + 1] == '"';
      if (c == '"' && !pair) {
        quoted = false;
      } else {
        field += c;
        i += pair ? 1 : 0;
      }
      continue;
    }
    if (c == '\n' || c == '\r') break;
    any = true;
    if (c == '"' && at_start) {
      quoted = true;
      at_start = false;
    } else if (c == ',') {
      if (fields.size() + 1 == kMaxColumns) {
        throw Error(Finding::kLimit, fmt::format("a row has more than {} fields", kMaxColumns));
      }
      fields.push_back(std::move(field));
      field.clear();
      at_start = true;
    } else {
      field += c;
      at_start = false;
    }
  }
  if (quoted) throw Error(Finding::kBadText, "a quoted field of the CSV text does not end");
  if (any) fields.push_back(std::move(field));
  if (i < text.size()) {
    i += text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n' ? 2 : 1;
  }
  text.remove_prefix(i);
  return true;
}

// A column of the markdown table and where llm_bench's JSON has it.
struct JsonColumn {
  std::string_view column, key;
  int digits;
};
constexpr JsonColumn kJsonColumns[] = {
    {"h2o_keep", "h2o_keep_ratio", 4},
    {"h2o_lossy", "h2o_lossy_ratio", 3},
    {"h2o_lossless", "h2o_lossless_ratio", 3},
    {"h2o_target_keep_effective", "h2o_target_keep_effective", 4},
    {"h2o_floor_keep", "h2o_floor_keep", 4},
    {"h2o_quantized_keep", "h2o_quantized_keep", 4},
    {"h2o_evict_us", "h2o_evict_us", 2},
    {"h2o_codec_us", "h2o_codec_us", 2},
    {"h2o_lossless_raw_mb", "h2o_lossless_raw_mb", 2},
    {"h2o_lossless_comp_mb", "h2o_lossless_comp_mb", 2},
    {"h2o_lossless_comp_us", "h2o_lossless_comp_us", 2},
    {"h2o_lossless_decomp_us", "h2o_lossless_decomp_us", 2},
    {"h2o_lossless_queue_peak", "h2o_lossless_queue_peak", 2},
    {"h2o_lossless_fallback", "h2o_lossless_fallback", 2},
    {"h2o_lossless_backpressure_skip", "h2o_lossless_backpressure_skip", 2},
    {"h2o_lossless_async_queue_peak", "h2o_lossless_async_queue_peak", 2},
    {"h2o_lossless_async_wait_us", "h2o_lossless_async_wait_us", 2},
    {"h2o_lossless_decode_cache_hit", "h2o_lossless_decode_cache_hit", 2},
    {"h2o_lossless_decode_cache_miss", "h2o_lossless_decode_cache_miss", 2}};

// A document, or nothing where the text is none, as where several stand one per line.
std::optional<Json> OneDocument(std::string_view text, std::string_view file) {
  try {
    return ParseJson(text, file);
  } catch (const Error& error) {
    if (error.finding() != Finding::kBadText) throw;
    return std::nullopt;
  }
}

std::string PlusMinus(double mean, double deviation, int digits) {
  return Fixed(mean, digits) + " \u00b1 " + Fixed(deviation, digits);
}

}  // namespace

TableState StateOfTable(std::string_view text) {
  TableState state;
  size_t width = 0, lines = 0;
  bool header_ends = false;
  const std::string clean = OnlyUtf8(text);
  ForEachLine(clean, [&](std::string_view line) {
    line = Strip(line);
    if (!StartsWith(line, "|")) return;
    const std::vector<std::string_view> cells = SplitRow(line);
    const bool ends = line.size() > 1 && line.back() == '|';
    if (++lines == 1) {
      state.has_header = true;
      width = cells.size();
      header_ends = ends;
    } else if (lines > 2 && !IsRule(cells)) {
      const bool is_whole = cells.size() == width && ends == header_ends;
      ++(is_whole ? state.rows : state.cut);
    }
  });
  return state;
}

size_t BenchTable::Find(std::string_view name) const {
  return static_cast<size_t>(std::find(columns_.begin(), columns_.end(), name) - columns_.begin());
}

size_t BenchTable::Column(std::string_view name) {
  const size_t found = Find(name);
  if (found < columns_.size()) return found;
  if (columns_.size() == kMaxColumns) {
    throw Error(Finding::kLimit, fmt::format("the logs name more than {} columns", kMaxColumns));
  }
  columns_.emplace_back(name);
  return found;
}

BenchTable::Row& BenchTable::NewRow() {
  rows_.emplace_back();
  return rows_.back();
}

void BenchTable::Put(Row& row, std::string_view column, std::string_view cell) {
  const size_t place = Column(column);
  if (row.size() <= place) {
    cells_ += place + 1 - row.size();
    if (cells_ > kMaxCells) {
      throw Error(Finding::kLimit, fmt::format("the tables have more than {} cells", kMaxCells));
    }
    row.resize(place + 1);
  }
  row[place] = cell;
}

size_t BenchTable::AddMarkdown(std::string_view text, std::string_view log_file) {
  const std::string clean = OnlyUtf8(text);
  std::vector<std::string_view> lines;
  ForEachLine(clean, [&](std::string_view line) {
    line = Strip(line);
    if (StartsWith(line, "|")) lines.push_back(line);
  });
  if (lines.size() < 3) return 0;
  const std::vector<std::string_view> header = SplitRow(lines[0]);
  size_t added = 0;
  for (size_t i = 2; i < lines.size(); ++i) {
    const std::vector<std::string_view> cells = SplitRow(lines[i]);
    if (cells.size() != header.size() || IsRule(cells)) continue;
    Row& row = NewRow();
    for (size_t c = 0; c < cells.size(); ++c) Put(row, header[c], cells[c]);
    Put(row, "log_file", log_file);
    ++added;
  }
  return added;
}

size_t BenchTable::AddJson(std::string_view text, std::string_view log_file) {
  const auto add = [&](const Json& document) {
    if (!document.is_object()) return size_t{0};
    const auto results = document.find("results");
    if (results == document.end() || !results->is_array()) return size_t{0};
    // Every row repeats these: a long text would take its length times the rows.
    constexpr size_t kMaxWord = 256;
    const auto word = [&](const char* key) {
      const auto found = document.find(key);
      if (found == document.end()) return std::string();
      if (!found->is_string()) return ShowJson(*found);
      return std::string(FirstCodePoints(found->get_ref<const std::string&>(), kMaxWord));
    };
    const std::string model = word("model"), backend = word("backend"), threads = word("threads");
    for (const Json& result : *results) {
      Row& row = NewRow();
      Put(row, "model", model);
      Put(row, "modelSize", fmt::format("{} GiB", Fixed(NumberAt(document, "modelSize"), 2)));
      Put(row, "backend", backend);
      Put(row, "threads", threads);
      Put(row, "llm_demo",
          fmt::format("prompt={:.0f}<br>decode={:.0f}", NumberAt(result, "prompt_len"),
                      NumberAt(result, "generate_len")));
      Put(row, "speed(tok/s)",
          PlusMinus(NumberAt(result, "prefill_tps"), NumberAt(result, "prefill_std"), 2) + "<br>" +
              PlusMinus(NumberAt(result, "decode_tps"), NumberAt(result, "decode_std"), 2));
      for (const JsonColumn& column : kJsonColumns) {
        const std::string key(column.key);
        if (!result.is_object() || !result.contains(key)) continue;
        // What is no number is shown as it is, not as 0.
        const bool is_number = std::isfinite(NumberAt(result, key, NAN)) || result[key].is_string();
        Put(row, column.column,
            is_number
                ? PlusMinus(NumberAt(result, key), NumberAt(result, key + "_std"), column.digits)
                : ShowJson(result[key]));
      }
      Put(row, "log_file", log_file);
    }
    return results->size();
  };
  const std::string clean = OnlyUtf8(text);
  if (const auto whole = OneDocument(clean, log_file)) return add(*whole);
  // Several runs append one document each.
  size_t added = 0;
  ForEachLine(clean, [&](std::string_view line) {
    if (!Strip(line).empty()) added += add(ParseJson(line, log_file));
  });
  return added;
}

BenchTable BenchTable::FromCsv(std::string_view text) {
  BenchTable table;
  const std::string clean = OnlyUtf8(text);
  std::string_view rest = clean;
  std::vector<std::string> header, fields;
  if (!NextRecord(rest, header) || header.empty()) {
    throw Error(Finding::kBadText, "expected a CSV table with a line of column names");
  }
  for (const std::string& name : header) table.Column(name);
  while (NextRecord(rest, fields)) {
    if (fields.empty()) continue;
    Row& row = table.NewRow();
    for (size_t i = 0; i < std::min(fields.size(), header.size()); ++i) {
      table.Put(row, header[i], fields[i]);
    }
  }
  return table;
}

std::vector<std::string> BenchTable::Columns() const {
  std::vector<std::string> columns = columns_;
  std::sort(columns.begin(), columns.end(), [](const std::string& a, const std::string& b) {
    const size_t rank_a = Rank(a), rank_b = Rank(b);
    return rank_a != rank_b ? rank_a < rank_b : a < b;
  });
  return columns;
}

std::string_view BenchTable::Cell(size_t row, std::string_view column) const {
  const size_t place = Find(column);
  return place < rows_[row].size() ? std::string_view(rows_[row][place]) : std::string_view();
}

bool BenchTable::IsHeaderAgain(size_t row) const {
  for (size_t place = 0; place < rows_[row].size(); ++place) {
    const std::string& cell = rows_[row][place];
    if (cell != columns_[place] && !cell.empty() && columns_[place] != "log_file") return false;
  }
  return true;
}

}  // namespace kv::mnn::logs
