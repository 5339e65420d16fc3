// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <charconv>
#include <cmath>

#include "apps/capture-llama/json.h"

namespace kv::capture {
namespace {

// The length of the well-formed UTF-8 sequence that begins here; 0 if none does.
size_t SequenceAt(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xC2 && lead < 0xE0   ? 2
                        : lead >= 0xE0 && lead < 0xF0 ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4
                                                      : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what lies beyond Unicode.
  const unsigned char second = byte(1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) return 0;
  if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) return 0;
  return length;
}

}  // namespace

std::string Quoted(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = SequenceAt(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out += "\\ufffd";
    } else if (byte == '"' || byte == '\\') {
      (out += '\\') += text[0];
    } else if (byte < 0x20) {
      ((out += "\\u00") += kDigits[byte >> 4]) += kDigits[byte & 15];
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out += '"';
}

std::string Shortest(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

JsonObject& JsonObject::Add(std::string_view key, double value) {
  return Raw(key, std::isfinite(value) ? Shortest(value) : "null");
}

JsonObject& JsonObject::Raw(std::string_view key, std::string_view value) {
  const std::string member = (Quoted(key) += ": ") += value;
  members_ += (members_.empty() ? "" : ", ") + member;
  lines_ += (lines_.empty() ? "" : ",\n  ") + member;
  return *this;
}

}  // namespace kv::capture
