// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Numbers and texts with Python's rules.
#include "lib/engines/mnn/logs/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"

namespace kv::mnn::logs {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\v\f\x1c\x1d\x1e\x1f";

size_t Digits(std::string_view text, size_t from) {
  return std::min(text.find_first_not_of("0123456789", from), text.size()) - from;
}

double ToDouble(std::string_view digits) {
  if (digits.starts_with('+')) digits.remove_prefix(1);
  return TakeNumber<double>(digits).value_or(0);
}

struct Match {
  size_t begin = std::string_view::npos, end = 0;
};

// Returns the first match of [-+]?[0-9]*\.?[0-9]+.
Match FirstDecimal(std::string_view text) {
  for (size_t begin = 0; begin < text.size(); ++begin) {
    const bool sign = text[begin] == '-' || text[begin] == '+';
    const size_t whole_at = begin + sign;
    const size_t whole = Digits(text, whole_at);
    const size_t dot = whole_at + whole;
    const size_t fraction = dot < text.size() && text[dot] == '.' ? Digits(text, dot + 1) : 0;
    if (fraction > 0) return {begin, dot + 1 + fraction};
    if (whole > 0) return {begin, dot};
  }
  return {};
}

std::string PythonFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

std::string_view Strip(std::string_view text) { return Trimmed(text, kBlanks); }

std::string_view StripAll(std::string_view text, char c) { return Trimmed(text, {&c, 1}); }

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

void ForEachLine(std::string_view text, const std::function<void(std::string_view)>& use) {
  while (!text.empty()) {
    const size_t end = text.find_first_of("\n\r\v\f\x1c\x1d\x1e");
    use(text.substr(0, end));
    if (end == std::string_view::npos) return;
    const bool both = text[end] == '\r' && end + 1 < text.size() && text[end + 1] == '\n';
    text.remove_prefix(end + (both ? 2 : 1));
  }
}

std::string OnlyUtf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    clean.append(text.substr(0, length));
    text.remove_prefix(std::max<size_t>(1, length));
  }
  return clean;
}

std::string_view FirstCodePoints(std::string_view text, size_t count) {
  size_t end = 0;
  while (count-- > 0 && end < text.size()) {
    end += std::max<size_t>(1, Utf8Length(text.substr(end)));
  }
  return text.substr(0, end);
}

double LooseNumber(std::string_view text, double otherwise, bool words) {
  const Match match = FirstDecimal(text);
  if (match.begin != std::string_view::npos) {
    return ToDouble(text.substr(match.begin, match.end - match.begin));
  }
  if (words) {
    std::string word = Lower(Strip(text));
    const bool negative = !word.empty() && word[0] == '-';
    if (!word.empty() && (word[0] == '-' || word[0] == '+')) word.erase(0, 1);
    if (word == "nan") return NAN;
    if (word == "inf" || word == "infinity") return negative ? -HUGE_VAL : HUGE_VAL;
  }
  return otherwise;
}

std::optional<double> FirstNumber(std::string_view text) {
  Match match = FirstDecimal(text);
  if (match.begin == std::string_view::npos) return std::nullopt;
  if (match.end < text.size() && (text[match.end] == 'e' || text[match.end] == 'E')) {
    const size_t sign = match.end + 1;
    const bool has_sign = sign < text.size() && (text[sign] == '-' || text[sign] == '+');
    const size_t exponent = Digits(text, sign + has_sign);
    if (exponent > 0) match.end = sign + has_sign + exponent;
  }
  return ToDouble(text.substr(match.begin, match.end - match.begin));
}

std::optional<double> WholeNumber(std::string_view text) {
  text = Strip(text);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  return ParseNumber<double>(text);
}

bool IsNonFinite(std::string_view word) {
  const std::string lower = Lower(word);
  for (const char* odd : {"#inf", "#qnan", "#snan", "#ind"}) {
    if (Contains(lower, odd)) return true;
  }
  const bool is_signed = !lower.empty() && (lower[0] == '-' || lower[0] == '+');
  const std::string_view bare = std::string_view(lower).substr(is_signed ? 1 : 0);
  if (bare == "nan" || bare.starts_with("nan(") || bare == "inf" || bare == "infinity") return true;
  const auto number = FirstNumber(word);
  return number && !std::isfinite(*number);
}

bool HasNonFinite(std::string_view cell) {
  std::string spaced(cell);
  for (const std::string_view mark : {"<br>", "\u00b1"}) {
    for (size_t at = spaced.find(mark); at != std::string::npos; at = spaced.find(mark, at)) {
      spaced.replace(at, mark.size(), mark.size(), ' ');
    }
  }
  for (std::string_view rest = Strip(spaced); !rest.empty();) {
    const size_t end = std::min(rest.find_first_of(" \t"), rest.size());
    if (IsNonFinite(rest.substr(0, end))) return true;
    rest = Strip(rest.substr(end));
  }
  return false;
}

std::string Fixed(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : PythonFloat(value);
}

std::string_view Bool(bool value) { return value ? "true" : "false"; }

std::string PythonText(std::string_view text) {
  const bool doubled = Contains(text, "'") && !Contains(text, "\"");
  const char quote = doubled ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const size_t control = ControlLength(text.substr(at));
    if (c == '\\' || c == quote) {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (control > 0) {
      const uint32_t code = CodePoint(text.substr(at, control));
      out += code < 0x100 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
      at += control - 1;
    } else {
      out += c;
    }
  }
  return out + quote;
}

std::string PythonList(const std::vector<std::string>& texts) {
  std::string out = "[";
  for (const std::string& text : texts) out += (out.size() > 1 ? ", " : "") + PythonText(text);
  return out + "]";
}

std::string PythonValue(const Json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) return PythonText(OnlyUtf8(value.get_ref<const std::string&>()));
  if (value.is_number_float()) return PythonFloat(value.get<double>());
  if (!value.is_structured()) return value.dump();
  std::string out(1, value.is_object() ? '{' : '[');
  for (const auto& item : value.items()) {
    if (out.size() > 1) out += ", ";
    if (value.is_object()) out += PythonText(item.key()) + ": ";
    out += PythonValue(item.value());
  }
  return out + (value.is_object() ? '}' : ']');
}

double NumberAt(const Json& object, std::string_view key, double otherwise) {
  if (!object.is_object()) return otherwise;
  const auto found = object.find(std::string(key));
  if (found == object.end()) return otherwise;
  if (found->is_number()) return found->get<double>();
  if (found->is_boolean()) return found->get<bool>() ? 1 : 0;
  if (found->is_string()) {
    return WholeNumber(found->get_ref<const std::string&>()).value_or(otherwise);
  }
  return otherwise;
}

// Reads the tables of llm_bench (markdown, CSV, JSON) by the rules of the engine's parser.

namespace {

// Bounds the columns that are kept, because a log may have any number of them in every row.
constexpr size_t kMaxColumns = 512;
constexpr uint64_t kMaxCells = 1u << 20;

// A column that the parser knows. H2O's figures have decimals, and a key in llm_bench's JSON.
struct KnownColumn {
  std::string_view name;
  int digits = 0;
  std::string_view json_key = name;
};
constexpr KnownColumn kKnownColumns[] = {{"model"},
                                         {"modelSize"},
                                         {"backend"},
                                         {"threads"},
                                         {"llm_demo"},
                                         {kSpeedColumn},
                                         {"h2o_keep", 4, "h2o_keep_ratio"},
                                         {"h2o_lossy", 3, "h2o_lossy_ratio"},
                                         {"h2o_lossless", 3, "h2o_lossless_ratio"},
                                         {"h2o_target_keep_effective", 4},
                                         {"h2o_floor_keep", 4},
                                         {"h2o_quantized_keep", 4},
                                         {"h2o_evict_us", 2},
                                         {"h2o_codec_us", 2},
                                         {"h2o_lossless_raw_mb", 2},
                                         {"h2o_lossless_comp_mb", 2},
                                         {"h2o_lossless_comp_us", 2},
                                         {"h2o_lossless_decomp_us", 2},
                                         {"h2o_lossless_queue_peak", 2},
                                         {"h2o_lossless_fallback", 2},
                                         {"h2o_lossless_backpressure_skip", 2},
                                         {"h2o_lossless_async_queue_peak", 2},
                                         {"h2o_lossless_async_wait_us", 2},
                                         {"h2o_lossless_decode_cache_hit", 2},
                                         {"h2o_lossless_decode_cache_miss", 2},
                                         {"log_file"}};

const KnownColumn* Known(std::string_view name) {
  return std::find_if(std::begin(kKnownColumns), std::end(kKnownColumns),
                      [&](const KnownColumn& column) { return column.name == name; });
}

std::vector<std::string_view> SplitRow(std::string_view line) {
  line = StripAll(line, '|');
  std::vector<std::string_view> cells;
  for (;;) {
    const size_t bar = line.find('|');
    cells.push_back(Strip(line.substr(0, bar)));
    if (bar == std::string_view::npos) return cells;
    if (cells.size() == kMaxColumns) {
      throw Error(Finding::kLimit, "a table has more than {} columns", kMaxColumns);
    }
    line.remove_prefix(bar + 1);
  }
}

bool IsRule(const std::vector<std::string_view>& cells) {
  return std::all_of(cells.begin(), cells.end(), [](std::string_view cell) {
    return !cell.empty() && cell.find_first_not_of("-:") == std::string_view::npos;
  });
}

// Reads the next record of a CSV text. Quoted fields may hold commas, quotes ("") and line ends.
bool NextRecord(std::string_view& text, std::vector<std::string>& fields) {
  fields.clear();
  if (text.empty()) return false;
  std::string field;
  bool quoted = false, at_start = true;
  size_t i = 0;
  for (; i < text.size() && (quoted || (text[i] != '\n' && text[i] != '\r')); ++i) {
    const char c = text[i];
    if (quoted && c == '"') {
      quoted = text.substr(i + 1).starts_with('"');  // two quotes stand for one quote in the field
      if (quoted) field += text[++i];
    } else if (!quoted && c == '"' && at_start) {
      quoted = true;
      at_start = false;
    } else if (!quoted && c == ',') {
      if (fields.size() + 1 == kMaxColumns) {
        throw Error(Finding::kLimit, "a row has more than {} fields", kMaxColumns);
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
  if (i > 0) fields.push_back(std::move(field));
  text.remove_prefix(i);
  text.remove_prefix(text.starts_with("\r\n") ? 2 : !text.empty());
  return true;
}

std::string PlusMinus(const Json& result, const std::string& mean, const std::string& deviation,
                      int digits) {
  return Fixed(NumberAt(result, mean), digits) + " \u00b1 " +
         Fixed(NumberAt(result, deviation), digits);
}

}  // namespace

size_t BenchTable::Find(std::string_view name) const {
  return static_cast<size_t>(std::find(columns_.begin(), columns_.end(), name) - columns_.begin());
}

size_t BenchTable::Column(std::string_view name) {
  const size_t found = Find(name);
  if (found < columns_.size()) return found;
  if (columns_.size() == kMaxColumns) {
    throw Error(Finding::kLimit, "the logs name more than {} columns", kMaxColumns);
  }
  columns_.emplace_back(name);
  return found;
}

void BenchTable::Put(std::string_view column, std::string_view cell) {
  Row& row = rows_.back();
  const size_t place = Column(column);
  if (row.size() <= place) {
    cells_ += place + 1 - row.size();
    if (cells_ > kMaxCells) {
      throw Error(Finding::kLimit, "the tables have more than {} cells", kMaxCells);
    }
    row.resize(place + 1);
  }
  row[place] = cell;
}

size_t BenchTable::AddMarkdown(std::string_view text, std::string_view log_file,
                               TableState* state) {
  const std::string clean = OnlyUtf8(text);
  TableState found;
  std::vector<std::string_view> header;
  size_t lines = 0, added = 0;
  bool header_ends = false;
  ForEachLine(clean, [&](std::string_view line) {
    line = Strip(line);
    if (!line.starts_with("|")) return;
    const std::vector<std::string_view> cells = SplitRow(line);
    const bool ends = line.size() > 1 && line.back() == '|';
    if (++lines == 1) {
      found.has_header = std::find(cells.begin(), cells.end(), kSpeedColumn) != cells.end();
      header = cells;
      header_ends = ends;
    }
    if (lines <= 2 || IsRule(cells)) return;
    const bool fits = cells.size() == header.size();
    ++(fits && ends == header_ends ? found.rows : found.cut);
    if (!fits) return;
    rows_.emplace_back();
    for (size_t c = 0; c < cells.size(); ++c) Put(header[c], cells[c]);
    Put("log_file", log_file);
    ++added;
  });
  if (state != nullptr) *state = found;
  return added;
}

size_t BenchTable::AddJson(std::string_view text, std::string_view log_file) {
  const auto add = [&](const Json& document) {
    const Json* results = gate::Find(document, "results");
    if (results == nullptr || !results->is_array()) return size_t{0};
    // Every row repeats these texts, so their length is limited: a long one would cost its length
    // times the rows.
    constexpr size_t kMaxWord = 256;
    const auto word = [&](const char* key) {
      const auto found = document.find(key);
      if (found == document.end()) return std::string();
      if (!found->is_string()) return ShowJson(*found);
      return std::string(FirstCodePoints(found->get_ref<const std::string&>(), kMaxWord));
    };
    const std::string model = word("model"), backend = word("backend"), threads = word("threads");
    for (const Json& result : *results) {
      rows_.emplace_back();
      Put("model", model);
      Put("modelSize", fmt::format("{} GiB", Fixed(NumberAt(document, "modelSize"), 2)));
      Put("backend", backend);
      Put("threads", threads);
      Put("llm_demo", fmt::format("prompt={:.0f}<br>decode={:.0f}", NumberAt(result, "prompt_len"),
                                  NumberAt(result, "generate_len")));
      Put(kSpeedColumn, PlusMinus(result, "prefill_tps", "prefill_std", 2) + "<br>" +
                            PlusMinus(result, "decode_tps", "decode_std", 2));
      for (const KnownColumn& column : kKnownColumns) {
        const std::string key(column.json_key);
        if (column.digits == 0 || !result.is_object() || !result.contains(key)) continue;
        // A value that is not a number is shown unchanged, not as 0.
        const bool is_number = std::isfinite(NumberAt(result, key, NAN)) || result[key].is_string();
        Put(column.name, is_number ? PlusMinus(result, key, key + "_std", column.digits)
                                   : ShowJson(result[key]));
      }
      Put("log_file", log_file);
    }
    return results->size();
  };
  const std::string clean = OnlyUtf8(text);
  std::optional<Json> whole;
  try {
    whole = ParseJson(clean, log_file);
  } catch (const Error& error) {
    if (error.finding() != Finding::kBadText) throw;
  }
  if (whole) return add(*whole);
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
    table.rows_.emplace_back();
    for (size_t i = 0; i < std::min(fields.size(), header.size()); ++i) {
      table.Put(header[i], fields[i]);
    }
  }
  return table;
}

std::vector<std::string> BenchTable::Columns() const {
  std::vector<std::string> columns = columns_;
  std::sort(columns.begin(), columns.end(), [](const std::string& a, const std::string& b) {
    return Known(a) != Known(b) ? Known(a) < Known(b) : a < b;
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
