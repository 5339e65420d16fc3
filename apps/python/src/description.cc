// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/python/src/description.h"

#include <cstring>
#include <string>

namespace kvtool_python {
namespace {

struct Word {
  uint8_t value;
  const char* name;
};
constexpr Word kLevels[] = {
    {KVT_FAST, "fast"}, {KVT_DEFAULT, "default"}, {KVT_HIGH, "high"}, {KVT_MAX, "max"}};
constexpr Word kOrders[] = {{KVT_TOKEN_HEAD_DIM, "token_head_dim"},
                            {KVT_HEAD_TOKEN_DIM, "head_token_dim"},
                            {KVT_ORDER_UNKNOWN, "unknown"}};
constexpr Word kRoles[] = {
    {KVT_ROLE_UNKNOWN, "unknown"}, {KVT_K, "k"}, {KVT_V, "v"}, {KVT_KV, "kv"}};

uint8_t ParseWord(nb::handle text, std::span<const Word> words, const char* what) {
  if (!nb::isinstance<nb::str>(text)) {
    throw nb::type_error((std::string(what) + ": expected a word such as '" + words[0].name +
                          "', not '" + TypeName(text) + "'")
                             .c_str());
  }
  const std::string given = Text(text);
  for (const Word& word : words) {
    if (given == word.name) return word.value;
  }
  std::string message = std::string(what) + " '" + given + "': expected one of";
  for (const Word& word : words)
    message += std::string(&word == words.data() ? " " : ", ") + word.name;
  throw nb::value_error(message.c_str());
}

const char* NameOf(uint8_t value, std::span<const Word> words) {
  for (const Word& word : words) {
    if (word.value == value) return word.name;
  }
  return "unknown";
}

std::vector<uint64_t> ParseShape(nb::handle shape) {
  const Sequence axes(shape, "shape");
  constexpr size_t kMostAxes = 64;  // of NumPy's arrays and torch's tensors
  if (axes.size() > kMostAxes) throw nb::value_error("shape: expected at most 64 axes");
  std::vector<uint64_t> sizes(axes.size());
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = ParseInteger<uint64_t>(axes[i], "shape");
  return sizes;
}

}  // namespace

Sequence::Sequence(nb::handle object, const char* what) : object_(object) {
  if (PySequence_Check(object.ptr()) == 0) {
    throw nb::type_error((std::string(what) + ": expected a list, a tuple or another sequence, " +
                          "not '" + TypeName(object) + "'")
                             .c_str());
  }
  const Py_ssize_t size = PySequence_Size(object.ptr());
  if (size < 0) throw nb::python_error();
  size_ = static_cast<size_t>(size);
}

nb::object Sequence::operator[](size_t index) const {
  nb::object element = nb::steal(PySequence_GetItem(object_.ptr(), static_cast<Py_ssize_t>(index)));
  if (!element.is_valid()) throw nb::python_error();
  return element;
}

uint32_t ParseLevel(nb::handle level) {
  if (!PyLong_Check(level.ptr())) return ParseWord(level, kLevels, "level");
  const auto number = ParseInteger<int64_t>(level, "level");
  if (number < KVT_FAST || number > KVT_MAX)
    throw nb::value_error("level: expected a number from 1 to 4");
  return static_cast<uint32_t>(number);
}

const char* LevelName(uint32_t level) { return NameOf(static_cast<uint8_t>(level), kLevels); }
const char* OrderName(uint8_t order) { return NameOf(order, kOrders); }
const char* RoleName(uint8_t role) { return NameOf(role, kRoles); }

void ParseContext(nb::handle context, uint8_t out[16]) {
  const Buffer bytes(context, Buffer::Access::kRead);
  if (bytes.bytes() != 16) {
    throw nb::value_error("context: expected 16 bytes, such as kvtool.hash128(name) returns");
  }
  std::memcpy(out, bytes.data(), 16);
}

void SetShape(kvt_desc& desc, const std::vector<uint64_t>& shape) {
  if (shape.size() < 2 || desc.order == KVT_ORDER_UNKNOWN) {
    desc.order = KVT_ORDER_UNKNOWN;
    return;
  }
  const size_t axes = shape.size();
  uint64_t outer = 1, middle = axes == 2 ? 1 : shape[axes - 2];
  for (size_t i = 0; i + (axes == 2 ? 1 : 2) < axes; ++i) {
    // A product that overflows describes no existing bytes, so the encoder drops the shape.
    if (__builtin_mul_overflow(outer, shape[i], &outer)) outer = 0;
  }
  const bool tokens_first = desc.order == KVT_TOKEN_HEAD_DIM || axes == 2;
  const uint64_t heads = tokens_first ? middle : outer;
  if (heads > UINT32_MAX || shape[axes - 1] > UINT32_MAX) {
    desc.order = KVT_ORDER_UNKNOWN;
    return;
  }
  if (axes == 2) desc.order = KVT_TOKEN_HEAD_DIM;
  desc.tokens = tokens_first ? outer : middle;
  desc.heads = static_cast<uint32_t>(heads);
  desc.head_dim = static_cast<uint32_t>(shape[axes - 1]);
}

kvt_desc Describe(const DescriptionArguments& arguments, std::span<const Buffer* const> pieces) {
  kvt_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.dtype = KVT_U8;
  if (pieces.empty() && !arguments.dtype.is_none()) desc.dtype = ParseDtype(arguments.dtype);
  for (const Buffer* piece : pieces) {
    const uint8_t dtype = piece->ChooseDtype(arguments.dtype);
    if (piece != pieces.front() && dtype != desc.dtype) {
      throw nb::type_error((std::string("an object has pieces of ") + DtypeName(desc.dtype) +
                            " and of " + DtypeName(dtype) + ": pass dtype=")
                               .c_str());
    }
    desc.dtype = dtype;
  }
  desc.order = ParseWord(arguments.order, kOrders, "order");
  desc.role = ParseWord(arguments.role, kRoles, "role");
  desc.tag = ParseInteger<uint32_t>(arguments.tag, "tag");
  if (!arguments.context.is_none()) ParseContext(arguments.context, desc.context);
  if (!arguments.shape.is_none()) {
    SetShape(desc, ParseShape(arguments.shape));
  } else if (pieces.size() == 1 && pieces[0]->item_bytes() == DtypeBytes(desc.dtype)) {
    SetShape(desc, pieces[0]->shape());
  } else {
    desc.order = KVT_ORDER_UNKNOWN;
  }
  return desc;
}

}  // namespace kvtool_python
