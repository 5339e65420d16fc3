// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/python/src/description.h"

#include <cstring>
#include <span>
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
  Py_ssize_t size = 0;
  const char* given = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (given == nullptr) throw nb::python_error();
  for (const Word& word : words) {
    if (std::string_view(given, static_cast<size_t>(size)) == word.name) return word.value;
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
  std::vector<uint64_t> axes;
  for (nb::handle axis : nb::borrow(shape)) axes.push_back(nb::cast<uint64_t>(axis));
  return axes;
}

}  // namespace

uint32_t ParseLevel(nb::handle level) {
  if (!PyLong_Check(level.ptr())) return ParseWord(level, kLevels, "level");
  const auto number = nb::cast<int64_t>(level);
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
    // A product that does not fit describes no bytes that there are: the encoder drops the shape.
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

kvt_desc Describe(const DescriptionArguments& arguments, const Buffer* buffer) {
  kvt_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.dtype = KVT_U8;
  size_t buffer_item = 0;
  if (buffer != nullptr) {
    buffer_item = buffer->item_bytes();
    // Integers of two bytes are how bf16 travels where its name does not exist.
    desc.dtype = buffer->dtype().value_or(buffer_item == 2 ? KVT_BF16 : KVT_U8);
  }
  if (!arguments.dtype.is_none()) desc.dtype = ParseDtype(arguments.dtype);
  desc.order = ParseWord(arguments.order, kOrders, "order");
  desc.role = ParseWord(arguments.role, kRoles, "role");
  desc.tag = nb::cast<uint32_t>(arguments.tag);
  if (!arguments.context.is_none()) ParseContext(arguments.context, desc.context);
  if (!arguments.shape.is_none()) {
    SetShape(desc, ParseShape(arguments.shape));
  } else if (buffer != nullptr && buffer_item == DtypeBytes(desc.dtype)) {
    SetShape(desc, buffer->shape());
  } else {
    desc.order = KVT_ORDER_UNKNOWN;
  }
  return desc;
}

}  // namespace kvtool_python
