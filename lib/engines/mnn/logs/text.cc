// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Numbers and texts with Python's rules.
#include "lib/engines/mnn/logs/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"

namespace kv::mnn::logs {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\v\f\x1c\x1d\x1e\x1f";

char LowerChar(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

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

std::string_view Strip(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::string_view StripAll(std::string_view text, char c) {
  const size_t begin = text.find_first_not_of(c);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(c) - begin + 1);
}

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool ContainsIgnoringCase(std::string_view text, std::string_view part) {
  const auto same = [](char a, char b) { return LowerChar(a) == LowerChar(b); };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), same) != text.end();
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), LowerChar);
  return lower;
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

}  // namespace kv::mnn::logs
