// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/python/src/description.h"

#include <array>
#include <cstring>
#include <string>

#include "lib/api/kvtool.h"

namespace kvtool_python {

namespace {

struct DtypeRow {
  uint8_t dtype;
  uint8_t bytes;  // 0: coded in blocks
  const char* name;
  std::array<std::string_view, 2> aliases;
};

constexpr DtypeRow kDtypes[] = {
    {KVT_F32, 4, "f32", {"float32", "f4"}},
    {KVT_F16, 2, "f16", {"float16", "half"}},
    {KVT_BF16, 2, "bf16", {"bfloat16", ""}},
    {KVT_I8, 1, "i8", {"int8", ""}},
    {KVT_U8, 1, "u8", {"uint8", ""}},
    // Not float8_e4m3, which has infinities: its bits mean other values.
    {KVT_F8_E4M3, 1, "f8_e4m3", {"float8_e4m3fn", ""}},
    {KVT_F8_E5M2, 1, "f8_e5m2", {"float8_e5m2", ""}},
    {KVT_Q8_0, 0, "q8_0", {"Q8_0", ""}},
    {KVT_Q4_0, 0, "q4_0", {"Q4_0", ""}},
};

const DtypeRow* FindDtype(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  for (const DtypeRow& row : kDtypes) {
    if (name == row.name || name == row.aliases[0] || (!name.empty() && name == row.aliases[1]))
      return &row;
  }
  return nullptr;
}

// Returns "bfloat16" of dtype('bfloat16'), of the class ml_dtypes.bfloat16 and of torch.bfloat16.
std::string NameOfDtype(nb::handle dtype) {
  for (const char* attribute : {"name", "__name__"}) {
    const nb::object name = nb::getattr(dtype, attribute, nb::none());
    if (nb::isinstance<nb::str>(name)) return Text(name);
  }
  return Text(dtype);
}

bool HasByteOrder(std::string_view format) {
  return !format.empty() && std::string_view("@=<>!").find(format[0]) != format.npos;
}

// Returns true if the values have several bytes and are big-endian.
bool IsSwapped(std::string_view format, size_t item_bytes) {
  return item_bytes > 1 && !format.empty() && (format[0] == '>' || format[0] == '!');
}

// Parses codes of Python's struct module. bf16 often comes as integers or opaque pairs of bytes.
std::optional<uint8_t> DtypeOfFormat(std::string_view format, size_t item_bytes) {
  if (IsSwapped(format, item_bytes)) return std::nullopt;
  if (HasByteOrder(format)) format.remove_prefix(1);
  if (format == "f" && item_bytes == 4) return KVT_F32;
  if (format == "e" && item_bytes == 2) return KVT_F16;
  if ((format == "H" || format == "h" || format == "2x") && item_bytes == 2) return KVT_BF16;
  if (item_bytes != 1) return std::nullopt;
  if (format == "b") return KVT_I8;
  if (format == "B" || format == "c" || format.empty()) return KVT_U8;
  return std::nullopt;
}

// Returns true if a format of the struct module, NumPy or ctypes contains a pointer. Names of
// fields, between colons, may have any letters; Z before f, d or g is a complex number.
bool HasPointers(std::string_view format) {
  bool in_name = false;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] == ':') in_name = !in_name;
    if (in_name) continue;
    const bool complex = i + 1 < format.size() &&
                         std::string_view("fdg").find(format[i + 1]) != std::string_view::npos;
    if (std::string_view("OPXz&").find(format[i]) != std::string_view::npos) return true;
    if (format[i] == 'Z' && !complex) return true;
  }
  return false;
}

// Returns KVT_* for "bf16", "bfloat16", numpy.float16, ml_dtypes.bfloat16 or torch.bfloat16;
// ValueError if there is none.
uint8_t ParseDtype(nb::handle dtype) {
  // numpy.dtype(">f2") has the name "float16", too.
  const bool is_text = nb::isinstance<nb::str>(dtype);
  const nb::object order = nb::getattr(dtype, "byteorder", nb::none());
  const bool swapped = !is_text && nb::isinstance<nb::str>(order) && Text(order) == ">";
  const std::string name = is_text || swapped ? Text(dtype) : NameOfDtype(dtype);
  if (const DtypeRow* row = FindDtype(name)) return row->dtype;
  std::string known;
  for (const DtypeRow& row : kDtypes) known += (known.empty() ? "" : ", ") + std::string(row.name);
  throw nb::value_error(("dtype '" + name + "': expected one of " + known).c_str());
}

}  // namespace

std::string Text(nb::handle object) {
  const nb::str text(object);  // raises if __str__ raises
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw nb::python_error();
  return {data, static_cast<size_t>(size)};
}

std::string TypeName(nb::handle object) { return Text(object.type().attr("__name__")); }

const char* DtypeName(uint8_t dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "unknown";
}

size_t DtypeBytes(uint8_t dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.dtype == dtype) return row.bytes;
  }
  return 1;
}

bool Buffer::View::Take(nb::handle object, int flags) {
  Release();
  held_ = PyObject_GetBuffer(object.ptr(), &view_, flags) == 0;
  if (!held_) PyErr_Clear();
  return held_;
}

void Buffer::View::Release() {
  if (held_) PyBuffer_Release(&view_);
  held_ = false;
}

Buffer::Buffer(nb::handle object, Access access) {
  if (!TakeBuffer(object, access) && !TakeView(object, access) && !TakeTensor(object, access)) {
    throw nb::type_error(("'" + TypeName(object) +
                          "' has no memory that can be used: pass bytes, a memoryview, a NumPy " +
                          "array or a tensor on the CPU; of other arrays, " +
                          "array.view(numpy.uint16) or .view(numpy.uint8)")
                             .c_str());
  }
  if (dtype_) return;
  element_ = nb::hasattr(object, "dtype") ? Text(object.attr("dtype")) : "'" + element_ + "'";
  if (swapped_ && access == Access::kWrite) RefuseSwapped();
}

void Buffer::RefuseSwapped() const {
  throw nb::type_error(("values of type " + element_ +
                        " are big-endian: pass array.astype(array.dtype.newbyteorder('<'))")
                           .c_str());
}

uint8_t Buffer::ChooseDtype(nb::handle given) const {
  const std::optional<uint8_t> dtype = given.is_none() ? dtype_ : ParseDtype(given);
  if (swapped_ && (!dtype || DtypeBytes(*dtype) != 1)) RefuseSwapped();
  if (dtype) return *dtype;
  throw nb::type_error(
      ("values of type " + element_ +
       " are not supported: convert them, or pass dtype=\"u8\" to keep their bytes alone")
          .c_str());
}

bool Buffer::TakeBuffer(nb::handle object, Access access) {
  if (!PyObject_CheckBuffer(object.ptr())) return false;
  constexpr int kFlags = PyBUF_STRIDES | PyBUF_FORMAT;
  if (!view_.Take(object, access == Access::kWrite ? kFlags | PyBUF_WRITABLE : kFlags)) {
    // If the protocol cannot name an array's element type, the array can still be read as integers.
    if (access == Access::kRead || !view_.Take(object, kFlags)) return false;
    throw nb::value_error(
        ("'" + TypeName(object) + "' is read-only: pass a bytearray or another writable buffer")
            .c_str());
  }
  const Py_buffer& view = view_.get();
  if (PyBuffer_IsContiguous(&view, 'C') == 0) {
    throw nb::value_error("the array is not contiguous: pass numpy.ascontiguousarray(array)");
  }
  const std::string_view format = view.format == nullptr ? "" : view.format;
  if (HasPointers(format)) {
    throw nb::type_error(
        ("'" + TypeName(object) + "' holds pointers to objects, not values").c_str());
  }
  data_ = view.buf;
  bytes_ = static_cast<size_t>(view.len);
  item_bytes_ = static_cast<size_t>(view.itemsize);
  dtype_ = DtypeOfFormat(format, item_bytes_);
  swapped_ = IsSwapped(format, item_bytes_);
  element_ = format;
  for (int i = 0; i < view.ndim; ++i) shape_.push_back(static_cast<uint64_t>(view.shape[i]));
  return true;
}

// Arrays of ml_dtypes refuse the buffer protocol, and so may tensors of eight bits. Views as
// integers of the same width are accepted, and nothing is copied.
bool Buffer::TakeView(nb::handle object, Access access) {
  if (owner_.is_valid() || !nb::hasattr(object, "dtype") || !nb::hasattr(object, "view"))
    return false;
  const DtypeRow* row = FindDtype(NameOfDtype(object.attr("dtype")));
  const bool foreign = row != nullptr && (row->dtype == KVT_BF16 || row->dtype == KVT_F8_E4M3 ||
                                          row->dtype == KVT_F8_E5M2);
  if (!foreign) return false;
  const bool torch = Text(object.attr("dtype")).starts_with("torch.");
  if (torch && row->bytes != 1) return false;  // DLPack has bf16
  nb::object width = nb::str(row->bytes == 2 ? "uint16" : "uint8");
  if (torch) width = nb::module_::import_("torch").attr("uint8");
  owner_ = object.attr("view")(width);
  if (!TakeBuffer(owner_, access) && !TakeTensor(owner_, access)) return false;
  dtype_ = row->dtype;
  return true;
}

template <typename Tensor>
void Buffer::Describe(const Tensor& tensor) {
  using Code = nb::dlpack::dtype_code;
  if (tensor.device_type() != nb::device::cpu::value) {
    throw nb::type_error("the tensor is not on the CPU: pass tensor.cpu()");
  }
  int64_t expected = 1;
  for (size_t i = tensor.ndim(); i-- > 0; expected *= static_cast<int64_t>(tensor.shape(i))) {
    if (tensor.shape(i) != 1 && tensor.stride(i) != expected) {
      throw nb::value_error("the tensor is not contiguous: pass tensor.contiguous()");
    }
  }
  const nb::dlpack::dtype type = tensor.dtype();
  constexpr uint8_t kOpaqueHandle = 3;  // DLPack's type code of pointers
  if (type.code == kOpaqueHandle || type.bits == 0 || type.bits % 8 != 0) {
    throw nb::type_error("the tensor's values are not whole bytes: pass a view as torch.uint8");
  }
  const auto is = [&](Code code, unsigned bits) {
    return type.code == static_cast<uint8_t>(code) && type.bits == bits && type.lanes == 1;
  };
  item_bytes_ = type.bits / 8u * type.lanes;
  if (is(Code::Float, 32)) dtype_ = KVT_F32;
  if (is(Code::Float, 16)) dtype_ = KVT_F16;
  if (is(Code::Bfloat, 16) || is(Code::Int, 16) || is(Code::UInt, 16)) dtype_ = KVT_BF16;
  if (is(Code::Int, 8)) dtype_ = KVT_I8;
  if (is(Code::UInt, 8)) dtype_ = KVT_U8;
  if (is(Code::Float8_E4M3FN, 8)) dtype_ = KVT_F8_E4M3;
  if (is(Code::Float8_E5M2, 8)) dtype_ = KVT_F8_E5M2;
  element_ = "DLPack " + std::to_string(type.code) + ", " + std::to_string(type.bits) + " bits";
  data_ = const_cast<void*>(static_cast<const void*>(tensor.data()));
  bytes_ = tensor.size() * item_bytes_;
  for (size_t i = 0; i < tensor.ndim(); ++i) shape_.push_back(tensor.shape(i));
}

bool Buffer::TakeTensor(nb::handle object, Access access) {
  if (!nb::hasattr(object, "__dlpack__")) return false;
  if (access == Access::kWrite) {
    tensor_.emplace();
    if (!nb::try_cast(object, *tensor_)) return false;
    Describe(*tensor_);
  } else {
    read_tensor_.emplace();
    if (!nb::try_cast(object, *read_tensor_)) return false;
    Describe(*read_tensor_);
  }
  return true;
}

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

const char* FindName(uint8_t value, std::span<const Word> words) {
  for (const Word& word : words) {
    if (word.value == value) return word.name;
  }
  return "unknown";
}

std::vector<uint64_t> ParseShape(nb::handle shape) {
  const Sequence axes(shape, "shape");
  constexpr size_t kMostAxes = 64;  // the limit of NumPy and torch
  if (axes.size() > kMostAxes) throw nb::value_error("shape: expected at most 64 axes");
  std::vector<uint64_t> sizes(axes.size());
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = ParseInteger<uint64_t>(axes[i], "shape");
  return sizes;
}

// Sets a shape of three axes; fewer or more are converted as docs/python.md says.
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

const char* LevelName(uint32_t level) { return FindName(static_cast<uint8_t>(level), kLevels); }
const char* OrderName(uint8_t order) { return FindName(order, kOrders); }
const char* RoleName(uint8_t role) { return FindName(role, kRoles); }

void ParseContext(nb::handle context, uint8_t out[16]) {
  const Buffer bytes(context, Buffer::Access::kRead);
  if (bytes.bytes() != 16) {
    throw nb::value_error("context: expected 16 bytes, such as kvtool.hash128(name) returns");
  }
  std::memcpy(out, bytes.data(), 16);
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
