// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A streaming reader and a small writer of JSON.
#include "apps/capture-llama/json.h"

#include <charconv>
#include <cmath>

#include "apps/capture-llama/failure.h"

namespace kv::capture {
namespace {

constexpr int kDeepest = 64;

void AppendUtf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const uint32_t lead = more == 1 ? 0xC0 : more == 2 ? 0xE0 : 0xF0;
  out += static_cast<char>(lead | code >> (6 * more));
  for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | (code >> (6 * i) & 0x3F));
}

}  // namespace

void JsonReader::Refuse(const std::string& what) const {
  throw Failure(kInvalid, name_ + ": " + what + " at byte " + std::to_string(at_));
}

char JsonReader::Next() {
  at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
  if (at_ == text_.size()) Refuse("the document ends too early");
  return text_[at_];
}

void JsonReader::Expect(char wanted) {
  if (Next() != wanted) Refuse(std::string("no '") + wanted + "'");
  ++at_;
}

bool JsonReader::Opens(char open, char close) {
  Expect(open);
  if (++depth_ > kDeepest) Refuse("values are nested too deeply");
  if (Next() != close) return false;
  ++at_;
  --depth_;
  return true;
}

bool JsonReader::Goes(char close) {
  const char next = Next();
  if (next != ',' && next != close) Refuse(std::string("neither ',' nor '") + close + "'");
  ++at_;
  if (next == close) --depth_;
  return next == ',';
}

bool JsonReader::Word(std::string_view word) {
  Next();
  if (text_.substr(at_, word.size()) != word) return false;
  at_ += word.size();
  return true;
}

bool JsonReader::Null() { return Word("null"); }

uint32_t JsonReader::Escape() {
  uint32_t code = 0;
  const std::string_view digits = text_.substr(at_, 4);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
  if (error != std::errc() || digits.size() != 4 || end != digits.data() + 4) {
    Refuse("not four hexadecimal digits");
  }
  at_ += 4;
  return code;
}

std::string JsonReader::String() {
  Expect('"');
  std::string out;
  while (true) {
    if (at_ == text_.size()) Refuse("a string does not end");
    const char byte = text_[at_++];
    if (byte == '"') return out;
    if (static_cast<unsigned char>(byte) < 0x20) Refuse("a control character in a string");
    if (byte != '\\') {
      out += byte;
      continue;
    }
    if (at_ == text_.size()) Refuse("a string does not end");
    const char kind = text_[at_++];
    constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    if (const size_t named = kNames.find(kind); named != kNames.npos) {
      out += kValues[named];
      continue;
    }
    if (kind != 'u') Refuse("an unknown escape");
    uint32_t code = Escape();
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      at_ += 2;
      const uint32_t low = Escape();
      if (low < 0xDC00 || low > 0xDFFF) Refuse("an incomplete surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code >= 0xD800 && code <= 0xDFFF) Refuse("an incomplete surrogate pair");
    AppendUtf8(code, out);
  }
}

std::string_view JsonReader::Number() {
  Next();
  const size_t end = std::min(text_.find_first_not_of("+-.0123456789eE", at_), text_.size());
  if (end == at_) Refuse("not a valid value");
  return text_.substr(at_, end - at_);
}

int64_t JsonReader::Integer(int64_t least, int64_t most) {
  const std::string_view digits = Number();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) Refuse("not an integer");
  if (value < least || value > most) {
    Refuse(std::string(digits) + " is not in " + std::to_string(least) + " to " +
           std::to_string(most));
  }
  at_ += digits.size();
  return value;
}

void JsonReader::Skip() {
  const char first = Next();
  if (first == '{') return Object([this](std::string_view) { Skip(); });
  if (first == '[') return Array([this] { Skip(); });
  if (first == '"') {
    String();
    return;
  }
  if (Word("true") || Word("false") || Word("null")) return;
  const std::string_view digits = Number();
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size() || error == std::errc::invalid_argument) {
    Refuse("not a number");
  }
  at_ += digits.size();
}

void JsonReader::End() {
  if (text_.find_first_not_of(" \t\r\n", at_) != text_.npos)
    Refuse("text follows the end of the document");
}

namespace {

// Returns the length of the well-formed UTF-8 sequence that begins here; 0 if there is none.
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
  // Rejects overlong forms, surrogates, and code points beyond Unicode.
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
