// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/npy/npy_header.h"

#include <fmt/format.h>

#include <utility>

#include "lib/core/base/checked.h"

namespace kv {
namespace {

constexpr size_t kMostDimensions = 64;  // numpy 2; numpy 1 has 32
constexpr uint64_t kPreambleBytes = 8;  // magic and version
constexpr uint64_t kAlignment = 64;

struct NpyWord {
  std::string_view name;
  DType dtype;
};
constexpr NpyWord kWords[] = {
    {"f2", DType::kF16}, {"f4", DType::kF32}, {"f8", DType::kF64}, {"i1", DType::kI8},
    {"i2", DType::kI16}, {"i4", DType::kI32}, {"i8", DType::kI64}, {"u1", DType::kU8},
    {"u2", DType::kU16}, {"u4", DType::kU32}, {"u8", DType::kU64}, {"b1", DType::kBool},
};

// The literal a header may be: a dict of the three keys, with a string, a bool and a tuple of
// integers as values. One pass, no recursion.
class LiteralParser {
 public:
  LiteralParser(std::string_view text, uint64_t base) : text_(text), base_(base) {}

  NpyHeader Parse() {
    NpyHeader header;
    bool has_descr = false, has_order = false, has_shape = false;
    Expect('{');
    while (!Accept('}')) {
      const std::string key = String();
      Expect(':');
      if (key == "descr" && !std::exchange(has_descr, true)) {
        header.descr = Descr();
      } else if (key == "fortran_order" && !std::exchange(has_order, true)) {
        header.fortran_order = Bool();
      } else if (key == "shape" && !std::exchange(has_shape, true)) {
        header.shape = Shape();
      } else {
        throw Bad(fmt::format("key '{}' is unknown or occurs twice", Escaped(key, 40)));
      }
      if (!Accept(',')) {
        Expect('}');
        break;
      }
    }
    SkipSpace();
    if (at_ != text_.size()) throw Bad("more text follows the dict");
    if (!has_descr || !has_order || !has_shape) {
      throw Bad("needs the keys descr, fortran_order and shape");
    }
    return header;
  }

 private:
  Error Bad(std::string what) const {
    Error error(Finding::kBadHeader, "header: " + what);
    return error.At(base_ + at_);
  }

  void SkipSpace() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  bool Accept(char c) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void Expect(char c) {
    if (!Accept(c)) throw Bad(fmt::format("expected '{}'", c));
  }

  bool AcceptWord(std::string_view word) {
    SkipSpace();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool Bool() {
    if (AcceptWord("True")) return true;
    if (AcceptWord("False")) return false;
    throw Bad("expected True or False");
  }

  std::string String() {
    SkipSpace();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') throw Bad("expected a quoted string");
    const size_t end = text_.find(quote, at_ + 1);
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    if (end == text_.npos || inside.find('\\') != inside.npos) throw Bad("string without its end");
    at_ = end + 1;
    return std::string(inside);
  }

  std::string Descr() {
    if (Accept('[')) {
      throw Error(Finding::kUnsupportedDtype, "is a structured array; save its fields apart")
          .At(base_ + at_);
    }
    return String();
  }

  uint64_t Number() {
    SkipSpace();
    const size_t begin = at_;
    uint64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = CheckedAdd(CheckedMul(value, 10, "shape"), static_cast<uint64_t>(text_[at_] - '0'),
                         "shape");
    }
    if (at_ == begin) throw Bad("expected a non-negative integer");
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2
    return value;
  }

  std::vector<uint64_t> Shape() {
    std::vector<uint64_t> shape;
    Expect('(');
    while (!Accept(')')) {
      shape.push_back(Number());
      if (shape.size() > kMostDimensions) throw Bad("more than 64 dimensions");
      if (Accept(',')) continue;
      if (shape.size() == 1) throw Bad("a tuple of one needs its comma");
      Expect(')');
      break;
    }
    return shape;
  }

  std::string_view text_;
  uint64_t base_;
  size_t at_ = 0;
};

}  // namespace

NpyHeader ParseNpyHeader(ByteSpan file) {
  ByteReader reader(file);
  if (file.size() < kNpyMagic.size() || reader.Text(kNpyMagic.size(), "magic") != kNpyMagic) {
    throw Error(Finding::kBadMagic, "does not begin with \\x93NUMPY").At(0);
  }
  const uint8_t major = reader.U8("version"), minor = reader.U8("version");
  if (major < 1 || major > 3 || minor != 0) {
    throw Error(Finding::kBadVersion,
                fmt::format("npy version {}.{}; 1.0, 2.0 and 3.0 exist", major, minor))
        .At(kNpyMagic.size());
  }
  const uint64_t length = major == 1 ? reader.U16("header length") : reader.U32("header length");
  if (length > kNpyHeaderCap) {
    throw Error(Finding::kLimit,
                fmt::format("header of {} bytes; the limit is {}", length, kNpyHeaderCap))
        .At(kPreambleBytes);
  }
  const uint64_t begin = reader.offset();
  const std::string_view text = reader.Text(length, "header");
  if (text.empty() || text.back() != '\n') {
    throw Error(Finding::kBadHeader, "header does not end with a line feed").At(begin);
  }
  NpyHeader header = LiteralParser(text, begin).Parse();
  header.data_offset = reader.offset();
  return header;
}

NpyType NpyTypeOf(std::string_view descr) {
  const auto unknown = [&] {
    return Error(Finding::kUnknownDtype, fmt::format("unknown type '{}'", Escaped(descr, 40)));
  };
  if (descr.size() < 2) throw unknown();
  const char order = descr[0], kind = descr[1];
  const std::string_view width = descr.substr(2);
  if (order != '<' && order != '>' && order != '=' && order != '|') throw unknown();
  if (kind == 'O') {
    throw Error(Finding::kUnsupportedKind,
                "is an object array: pickled Python objects, which are never loaded");
  }
  if (kind == 'V' && (width == "1" || width == "2")) {
    return {.dtype = width == "1" ? DType::kU8 : DType::kU16, .raw = true};
  }
  if (std::string_view("SUVMmc").find(kind) != std::string_view::npos || descr.substr(1) == "f16" ||
      descr.substr(1) == "f12") {
    throw Error(Finding::kUnsupportedDtype,
                fmt::format("type '{}' is not a real number of 1 to 8 bytes", Escaped(descr, 40)));
  }
  for (const NpyWord& word : kWords) {
    if (descr.substr(1) != word.name) continue;
    const bool wide = Info(word.dtype).block_bytes > 1;
    if (wide && order == '|') throw unknown();  // only bytes have no order
    return {.dtype = word.dtype, .swapped = wide && order == '>'};
  }
  throw unknown();
}

namespace {

// numpy writes |V2 for ml_dtypes.bfloat16, and |V1 for its types of 8 bits.
std::string DescrOf(DType dtype) {
  const uint32_t width = Info(dtype).block_bytes;
  const char order = width == 1 ? '|' : '<';
  for (const NpyWord& word : kWords) {
    if (word.dtype == dtype) return fmt::format("{}{}", order, word.name);
  }
  KV_ASSERT(!IsBlockQuantised(dtype));  // blocks are exported as bytes
  return fmt::format("|V{}", width);
}

}  // namespace

Bytes MakeNpyHeader(DType dtype, const std::vector<uint64_t>& shape) {
  std::string text =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (", DescrOf(dtype));
  text += fmt::format("{}", fmt::join(shape, ", "));
  text += shape.size() == 1 ? ",), }" : "), }";
  const uint64_t lead = kPreambleBytes + 2;
  const uint64_t total = RoundUp(lead + text.size() + 1, kAlignment);
  text.append(total - lead - text.size() - 1, ' ');
  text += '\n';
  ByteWriter out;
  out.Append(kNpyMagic);
  out.U8(1);
  out.U8(0);
  out.Write(static_cast<uint16_t>(text.size()));
  out.Append(text);
  return out.Release();
}

}  // namespace kv
