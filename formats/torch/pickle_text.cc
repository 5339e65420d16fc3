// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/torch/pickle_text.h"

#include <cstdint>

#include "lib/core/base/number.h"

namespace kv {
namespace {

// Exactly `digits` hexadecimal digits at the start of `text`.
std::optional<uint32_t> Hex(std::string_view text, size_t digits) {
  if (text.size() < digits) return std::nullopt;
  return ParseNumber<uint32_t>(text.substr(0, digits), 16);
}

std::optional<char> SimpleEscape(char letter) {
  switch (letter) {
    case '\\':
    case '\'':
    case '"':
      return letter;
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    default:
      return std::nullopt;
  }
}

}  // namespace

void AppendUtf8(uint32_t code_point, std::string& out) {
  const auto tail = [&](int shift) {
    out += static_cast<char>(0x80 | ((code_point >> shift) & 0x3f));
  };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xc0 | code_point >> 6);
    tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xe0 | code_point >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xf0 | code_point >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

std::optional<std::string> UnquotePython(std::string_view text) {
  if (text.size() < 2 || text.front() != text.back()) return std::nullopt;
  if (text.front() != '\'' && text.front() != '"') return std::nullopt;
  text = text.substr(1, text.size() - 2);
  std::string out;
  while (!text.empty()) {
    if (text[0] != '\\') {
      out += text[0];
      text.remove_prefix(1);
      continue;
    }
    if (text.size() < 2) return std::nullopt;
    if (const auto simple = SimpleEscape(text[1])) {
      out += *simple;
      text.remove_prefix(2);
      continue;
    }
    const auto code = text[1] == 'x' ? Hex(text.substr(2), 2) : std::nullopt;
    if (!code) return std::nullopt;
    out += static_cast<char>(*code);
    text.remove_prefix(4);
  }
  return out;
}

std::optional<std::string> DecodeRawUnicode(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const bool escape = text.size() > 1 && text[0] == '\\' && (text[1] == 'u' || text[1] == 'U');
    if (!escape) {
      AppendUtf8(static_cast<unsigned char>(text[0]), out);
      text.remove_prefix(1);
      continue;
    }
    const size_t digits = text[1] == 'u' ? 4 : 8;
    const auto code = Hex(text.substr(2), digits);
    const bool surrogate = code && *code >= 0xd800 && *code < 0xe000;
    if (!code || *code > 0x10ffff || surrogate) return std::nullopt;
    AppendUtf8(*code, out);
    text.remove_prefix(2 + digits);
  }
  return out;
}

std::optional<std::string> Latin1FromUtf8(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      out += text[i];
      continue;
    }
    // Two bytes reach up to U+00FF: 1100001x 10xxxxxx.
    if ((byte != 0xc2 && byte != 0xc3) || i + 1 == text.size()) return std::nullopt;
    const auto next = static_cast<unsigned char>(text[++i]);
    if ((next & 0xc0) != 0x80) return std::nullopt;
    out += static_cast<char>((byte & 3) << 6 | (next & 0x3f));
  }
  return out;
}

}  // namespace kv
