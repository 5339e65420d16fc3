// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The data opcodes of the pickle machine, protocols 0 to 5, grouped by the kind of value.
#include <fmt/format.h>

#include <bit>

#include "formats/torch/pickle.h"
#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"

namespace kv {
namespace {

// Python 2 had one type for text and bytes; text is UTF-8.
PickleKind ClassifyStr(std::string_view text) {
  return IsUtf8(text) ? PickleKind::kText : PickleKind::kBytes;
}

// Reads exactly `digits` hexadecimal digits at the start of `text`.
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

// Unquotes 'a
// \x41' or "..." as Python's repr writes a str. Returns nothing if it is not one.
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

// Converts Latin-1 with \uXXXX and \UXXXXXXXX to UTF-8; nothing if a character is half a surrogate
// pair.
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

}  // namespace

bool PickleMachine::Scalar(uint8_t opcode) {
  switch (opcode) {
    case 'N':  // NONE
      Push(PickleKind::kNone);
      return true;
    case 0x88:  // NEWTRUE
    case 0x89:  // NEWFALSE
      PushInt(PickleKind::kBool, opcode == 0x88);
      return true;
    case 'J':  // BININT
      PushInt(PickleKind::kInt, reader_.I32("BININT"));
      return true;
    case 'K':  // BININT1
      PushInt(PickleKind::kInt, reader_.U8("BININT1"));
      return true;
    case 'M':  // BININT2
      PushInt(PickleKind::kInt, reader_.U16("BININT2"));
      return true;
    case 0x8a:  // LONG1
      PushInteger(Counted(reader_.U8("LONG1 size"), "LONG1"));
      return true;
    case 0x8b: {  // LONG4
      const int32_t size = reader_.I32("LONG4 size");
      if (size < 0) Fail("LONG4 of negative size");
      PushInteger(Counted(static_cast<uint64_t>(size), "LONG4"));
      return true;
    }
    case 'G': {  // BINFLOAT, the only big-endian number
      const uint64_t bits = __builtin_bswap64(reader_.U64("BINFLOAT"));
      out_.values_[Push(PickleKind::kFloat)].content_.real = std::bit_cast<double>(bits);
      return true;
    }
    case 'I':  // INT
    case 'L':  // LONG
    case 'F':  // FLOAT
      ScalarLine(opcode);
      return true;
    default:
      return false;
  }
}

// Reads numbers that protocol 0 writes as text.
void PickleMachine::ScalarLine(uint8_t opcode) {
  std::string_view line = Line("number");
  if (opcode == 'I' && (line == "00" || line == "01")) {
    PushInt(PickleKind::kBool, line == "01");
    return;
  }
  if (opcode == 'F') {
    const auto real = ParseNumber<double>(line);
    if (!real) Fail("'{}' is not a number", Escaped(line));
    out_.values_[Push(PickleKind::kFloat)].content_.real = *real;
    return;
  }
  if (opcode == 'L' && line.ends_with('L')) line.remove_suffix(1);
  if (const auto integer = ParseNumber<int64_t>(line)) {
    PushInt(PickleKind::kInt, *integer);
    return;
  }
  const std::string_view digits = line.substr(line.starts_with('-') ? 1 : 0);
  if (digits.empty() || digits.find_first_not_of("0123456789") != digits.npos) {
    Fail("'{}' is not an integer", Escaped(line));
  }
  PushText(PickleKind::kBigInt, line);
}

void PickleMachine::PushInteger(std::string_view bytes) {
  if (bytes.size() > 8) return PushText(PickleKind::kBigInt, bytes);
  uint64_t bits = 0;
  for (size_t i = bytes.size(); i-- > 0;) bits = bits << 8 | static_cast<uint8_t>(bytes[i]);
  const size_t unused = 64 - 8 * bytes.size();
  // Sign-extends from the topmost byte present.
  const int64_t integer = bytes.empty() ? 0 : static_cast<int64_t>(bits << unused) >> unused;
  PushInt(PickleKind::kInt, integer);
}

bool PickleMachine::Text(uint8_t opcode) {
  switch (opcode) {
    case 'X':  // BINUNICODE
      PushUnicode(Counted(reader_.U32("BINUNICODE size"), "BINUNICODE"));
      return true;
    case 0x8c:  // SHORT_BINUNICODE
      PushUnicode(Counted(reader_.U8("SHORT_BINUNICODE size"), "text"));
      return true;
    case 0x8d:  // BINUNICODE8
      PushUnicode(Counted(reader_.U64("BINUNICODE8 size"), "BINUNICODE8"));
      return true;
    case 'T': {  // BINSTRING: the str of Python 2
      const std::string_view text = Counted(reader_.U32("BINSTRING size"), "BINSTRING");
      PushText(ClassifyStr(text), text);
      return true;
    }
    case 'U': {  // SHORT_BINSTRING
      const std::string_view text = Counted(reader_.U8("SHORT_BINSTRING size"), "text");
      PushText(ClassifyStr(text), text);
      return true;
    }
    case 'B':  // BINBYTES
      PushText(PickleKind::kBytes, Counted(reader_.U32("BINBYTES size"), "BINBYTES"));
      return true;
    case 'C':  // SHORT_BINBYTES
      PushText(PickleKind::kBytes, Counted(reader_.U8("SHORT_BINBYTES size"), "bytes"));
      return true;
    case 0x8e:  // BINBYTES8
      PushText(PickleKind::kBytes, Counted(reader_.U64("BINBYTES8 size"), "BINBYTES8"));
      return true;
    case 0x96:  // BYTEARRAY8
      PushText(PickleKind::kBytes, Counted(reader_.U64("BYTEARRAY8 size"), "BYTEARRAY8"));
      return true;
    case 'S': {  // STRING, quoted and escaped
      std::optional<std::string> text = UnquotePython(Line("STRING"));
      if (!text) Fail("STRING is not a quoted text");
      const PickleKind kind = ClassifyStr(*text);
      PushOwned(kind, std::move(*text));
      return true;
    }
    case 'V': {  // UNICODE, raw-unicode-escape
      std::optional<std::string> text = DecodeRawUnicode(Line("UNICODE"));
      if (!text) Fail("UNICODE has a malformed escape");
      PushOwned(PickleKind::kText, std::move(*text));
      return true;
    }
    default:
      return false;
  }
}

bool PickleMachine::Make(uint8_t opcode) {
  switch (opcode) {
    case ']':  // EMPTY_LIST
      Push(PickleKind::kList);
      return true;
    case '}':  // EMPTY_DICT
      Push(PickleKind::kDict);
      return true;
    case ')':  // EMPTY_TUPLE
      PushItems(PickleKind::kTuple, {});
      return true;
    case 0x8f:  // EMPTY_SET
      Push(PickleKind::kSet);
      return true;
    case 'l':     // LIST
    case 't':     // TUPLE
    case 0x91: {  // FROZENSET
      std::span<const PickleId> items = PopMark();
      const PickleKind kind = opcode == 'l'   ? PickleKind::kList
                              : opcode == 't' ? PickleKind::kTuple
                                              : PickleKind::kSet;
      PushItems(kind, items);
      return true;
    }
    case 'd': {  // DICT
      const std::span<const PickleId> items = PopMark();
      SetItems(Push(PickleKind::kDict), items);
      return true;
    }
    case 0x85:    // TUPLE1
    case 0x86:    // TUPLE2
    case 0x87: {  // TUPLE3
      PickleId items[3];
      const size_t count = opcode - 0x84u;
      for (size_t i = count; i-- > 0;) items[i] = Pop("TUPLE");
      PushItems(PickleKind::kTuple, {items, count});
      return true;
    }
    default:
      return false;
  }
}

bool PickleMachine::Fill(uint8_t opcode) {
  switch (opcode) {
    case 'a': {  // APPEND
      const PickleId item = Pop("APPEND");
      Append(Top("APPEND"), {&item, 1});
      return true;
    }
    case 'e': {  // APPENDS
      const std::span<const PickleId> items = PopMark();
      Append(Top("APPENDS"), items);
      return true;
    }
    case 's': {  // SETITEM
      PickleId pair[2];
      pair[1] = Pop("SETITEM");
      pair[0] = Pop("SETITEM");
      SetItems(Top("SETITEM"), pair);
      return true;
    }
    case 'u': {  // SETITEMS
      const std::span<const PickleId> items = PopMark();
      SetItems(Top("SETITEMS"), items);
      return true;
    }
    case 0x90: {  // ADDITEMS
      const std::span<const PickleId> items = PopMark();
      AddItems(Top("ADDITEMS"), items);
      return true;
    }
    default:
      return false;
  }
}

bool PickleMachine::Stack(uint8_t opcode) {
  switch (opcode) {
    case '(':  // MARK
      marks_.push_back(stack_.size());
      return true;
    case '0':  // POP, which also removes a mark
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
      } else {
        Pop("POP");
      }
      return true;
    case '1':  // POP_MARK
      PopMark();
      return true;
    case '2':  // DUP
      stack_.push_back(Top("DUP"));
      return true;
    default:
      return false;
  }
}

bool PickleMachine::Memo(uint8_t opcode) {
  const auto index = [&](std::string_view line) {
    const auto value = ParseNumber<uint64_t>(line);
    if (!value) Fail("'{}' is not a memo index", Escaped(line));
    return *value;
  };
  const auto get = [&](uint64_t key) {
    const std::optional<PickleId> found = memo_.Get(key);
    if (!found) Fail("memo {} was never set", key);
    stack_.push_back(*found);
  };
  switch (opcode) {
    case 'q':  // BINPUT
      memo_.Put(reader_.U8("BINPUT"), Top("BINPUT"));
      return true;
    case 'r':  // LONG_BINPUT
      memo_.Put(reader_.U32("LONG_BINPUT"), Top("LONG_BINPUT"));
      return true;
    case 'p':  // PUT
      memo_.Put(index(Line("PUT")), Top("PUT"));
      return true;
    case 0x94:  // MEMOIZE
      memo_.Put(memo_.size(), Top("MEMOIZE"));
      return true;
    case 'h':  // BINGET
      get(reader_.U8("BINGET"));
      return true;
    case 'j':  // LONG_BINGET
      get(reader_.U32("LONG_BINGET"));
      return true;
    case 'g':  // GET
      get(index(Line("GET")));
      return true;
    default:
      return false;
  }
}

std::string_view PickleMachine::Line(std::string_view what) {
  const std::string_view rest = AsText(reader_.rest());
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) {
    FailAs(Finding::kTruncated, "{} has no end of line", what);
  }
  reader_.Skip(end + 1, what);
  return rest.substr(0, end);
}

std::string_view PickleMachine::Counted(uint64_t size, std::string_view what) {
  return reader_.Text(size, what);
}

void PickleMachine::PushUnicode(std::string_view text) {
  if (!IsUtf8(text)) Fail("a text is not UTF-8");
  PushText(PickleKind::kText, text);
}

void PickleMachine::PushText(PickleKind kind, std::string_view text) {
  PickleValue& value = out_.values_[Push(kind)];
  value.content_.text = text.data();
  value.size_ = text.size();
}

void PickleMachine::PushOwned(PickleKind kind, std::string text) {
  PushText(kind, out_.texts_.emplace_back(std::move(text)));
}

}  // namespace kv
