// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/log_files.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/file.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"

namespace kv::gate {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxLogBytes = 64u << 20;
constexpr size_t kMaxFiles = 4096;

constexpr std::string_view kMark8 = "\xef\xbb\xbf", kMarkLittle = "\xff\xfe", kMarkBig = "\xfe\xff";
// After this many UTF-16 units in a row that are two ASCII characters each, the text is 8-bit: it
// was appended.
constexpr size_t kForeignRun = 8;

uint32_t Byte(std::string_view text, size_t i) { return static_cast<unsigned char>(text[i]); }

bool IsAsciiText(uint32_t byte) {
  return (byte >= 0x20 && byte < 0x7f) || byte == '\n' || byte == '\r' || byte == '\t';
}

void AppendUtf8(uint32_t c, std::string& out) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xc0 | c >> 6);
  } else {
    put(c < 0x10000 ? 0xe0 | c >> 12 : 0xf0 | c >> 18);
    if (c >= 0x10000) put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
  }
  put(0x80 | (c & 0x3f));
}

// Returns nothing if the text is not UTF-16 up to its end. A surrogate without its half is dropped.
std::optional<std::string> FromUtf16(std::string_view text, bool is_big) {
  std::string out;
  uint32_t high = 0;
  size_t run = 0;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    const uint32_t first = Byte(text, i), second = Byte(text, i + 1);
    run = IsAsciiText(first) && IsAsciiText(second) ? run + 1 : 0;
    if (run == kForeignRun) return std::nullopt;
    const uint32_t unit = is_big ? first << 8 | second : second << 8 | first;
    if (unit >= 0xd800 && unit < 0xdc00) {
      high = unit;
      continue;
    }
    const bool is_low = unit >= 0xdc00 && unit < 0xe000;
    if (is_low && high != 0) AppendUtf8(0x10000 + ((high - 0xd800) << 10) + unit - 0xdc00, out);
    if (!is_low && unit != 0) AppendUtf8(unit, out);
    high = 0;
  }
  return out;
}

// Converts a mixture: a byte beside a 0, on either side, is a character of UTF-16; others are
// 8-bit. Correct for text in Latin letters, even if the encoding changes within the file.
std::string FromMixture(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const uint32_t here = Byte(text, i);
    const bool has_next = i + 1 < text.size();
    const uint32_t next = has_next ? Byte(text, i + 1) : 0;
    if (has_next && (here == 0) != (next == 0)) {
      AppendUtf8(here | next, out);
      ++i;
    } else if (here != 0) {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

std::string LogText(std::string_view bytes) {
  if (bytes.starts_with(kMark8)) bytes.remove_prefix(kMark8.size());
  const bool is_big = bytes.starts_with(kMarkBig);
  if (is_big || bytes.starts_with(kMarkLittle)) {
    bytes.remove_prefix(kMarkBig.size());
    if (auto text = FromUtf16(bytes, is_big)) return *text;
  }
  if (bytes.find('\0') == std::string_view::npos) return std::string(bytes);
  return FromMixture(bytes);
}

std::string ReadLog(const fs::path& path, const std::string& shown) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (!error && size > kMaxLogBytes) {
    throw Error(Finding::kLimit, "a log of {} bytes; at most {} are read", size, kMaxLogBytes)
        .File(shown);
  }
  const auto source = FileSource::Open(path);
  return LogText(AsText(source->bytes()));
}

bool LogFolder::exists() const {
  std::error_code error;
  return fs::is_directory(path_, error);
}

std::vector<std::string> LogFolder::Names(bool folders, Wanted wanted) const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (folders ? !it->is_directory(ignored) : !it->is_regular_file(ignored)) continue;
    std::string name = it->path().filename().string();
    if (wanted != nullptr && !wanted(name)) continue;
    names.push_back(std::move(name));
    if (names.size() > kMaxFiles) {
      throw Error(Finding::kLimit, "a folder of more than {} logs", kMaxFiles).File(shown_);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool LogFolder::Has(const std::string& name) const {
  std::error_code error;
  return fs::is_regular_file(path_ / name, error);
}

std::optional<std::string> LogFolder::Text(const std::string& name) const {
  if (!Has(name)) return std::nullopt;
  return ReadLog(path_ / name, Shown(name));
}

namespace {

constexpr size_t kShownKey = 80;

// Returns true if a word is a number beyond the range of a double.
bool Overflows(std::string_view word) {
  if (word[0] == '-') word.remove_prefix(1);
  const bool is_digits = !word.empty() && word[0] >= '0' && word[0] <= '9';
  return is_digits && std::isinf(ParseNumber<double>(word).value_or(0));
}

// Writes NaN, infinities and too large numbers as texts, because strict parsers refuse them.
std::string QuoteNonFinite(std::string_view json) {
  constexpr std::string_view kWord =
      "+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string out;
  while (!json.empty()) {
    size_t length = 1;
    if (json[0] == '"') {
      while (length < json.size() && json[length] != '"') length += json[length] == '\\' ? 2 : 1;
      length = std::min(length + 1, json.size());
      out += json.substr(0, length);
    } else if (kWord.find(json[0]) != kWord.npos) {
      length = std::min(json.find_first_not_of(kWord), json.size());
      const std::string_view word = json.substr(0, length);
      const std::string_view size = word.substr(word.starts_with('-') ? 1 : 0);
      if (size == "Infinity" || size == "inf" || Overflows(word)) {
        out += word[0] == '-' ? "\"-Infinity\"" : "\"Infinity\"";
      } else {
        out += size == "NaN" || size == "nan" ? "\"NaN\"" : word;
      }
    } else {
      out += json[0];
    }
    json.remove_prefix(length);
  }
  return out;
}

}  // namespace

Json ParseJson(std::string_view text, std::string_view file) {
  const std::string quoted = QuoteNonFinite(text);
  JsonMistake mistake;
  Json json;
  try {
    json = ReadOrderedJson(quoted, {.bytes = UINT64_MAX, .unique_keys = true}, &mistake);
  } catch (Error& error) {
    throw error.File(file);
  }
  if (!json.is_discarded()) return json;
  if (mistake.kind == JsonMistake::Kind::kTwice) {
    throw Error(Finding::kBadText, "a JSON object has two keys '{}'",
                Escaped(mistake.text, kShownKey))
        .File(file);
  }
  if (mistake.kind == JsonMistake::Kind::kRange) {
    throw Error(Finding::kBadText, "a number of the JSON document is out of range").File(file);
  }
  throw Error(Finding::kBadText, "expected a JSON document")
      .At(std::min<size_t>(mistake.at > 0 ? mistake.at - 1 : 0, text.size()))
      .File(file);
}

const Json* Find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<double> NumberIn(const Json& object, std::string_view key) {
  const Json* found = Find(object, key);
  if (found == nullptr || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::optional<bool> FlagIn(const Json& object, std::string_view key) {
  const Json* found = Find(object, key);
  if (found == nullptr || !found->is_boolean()) return std::nullopt;
  return found->get<bool>();
}

std::string TextAt(const Json& object, std::string_view key, std::string otherwise) {
  const Json* found = Find(object, key);
  return found != nullptr && found->is_string() ? found->get<std::string>() : otherwise;
}

bool TruthAt(const Json& object, std::string_view key) {
  const Json* found = Find(object, key);
  if (found == nullptr) return false;
  if (found->is_boolean()) return found->get<bool>();
  if (found->is_number()) return found->get<double>() != 0;
  if (found->is_string()) return !found->get_ref<const std::string&>().empty();
  return !found->empty();
}

}  // namespace kv::gate
