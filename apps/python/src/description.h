// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/api/kvtool.h"

// Converts Python's kinds of memory to bytes with an element type and a shape, and parses the
// keyword arguments that describe what is encoded.
namespace kvtool_python {

namespace nb = nanobind;

// The memory of a Python object, pinned while this lives: anything with the buffer protocol, a
// tensor on the CPU by DLPack, or an array of ml_dtypes, which has neither and is viewed as
// unsigned integers. Created and destroyed with the GIL held; the memory may be used without it.
class Buffer {
 public:
  enum class Access { kRead, kWrite };
  // Throws TypeError for objects without memory and for memory that holds pointers, ValueError for
  // memory that is not contiguous or read-only.
  Buffer(nb::handle object, Access access);
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  size_t item_bytes() const { return item_bytes_; }
  // Returns KVT_* of the values: `given`, unless it is None, or the object's type. Throws TypeError
  // if frames have no such type, because encoding other values as bytes would lose their type.
  uint8_t ChooseDtype(nb::handle given) const;
  const std::vector<uint64_t>& shape() const { return shape_; }

 private:
  // A view through the buffer protocol; may be empty.
  class View {
   public:
    View() = default;
    ~View() { Release(); }
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    bool Take(nb::handle object, int flags);
    void Release();
    const Py_buffer& get() const { return view_; }

   private:
    Py_buffer view_ = {};
    bool held_ = false;
  };

  [[noreturn]] void RefuseSwapped() const;
  bool TakeBuffer(nb::handle object, Access access);
  bool TakeView(nb::handle object, Access access);
  bool TakeTensor(nb::handle object, Access access);
  template <typename Tensor>
  void Describe(const Tensor& tensor);

  View view_;
  nb::object owner_;                     // owner of a view that was created here
  std::optional<nb::ndarray<>> tensor_;  // by DLPack
  std::optional<nb::ndarray<nb::ro>> read_tensor_;
  void* data_ = nullptr;
  size_t bytes_ = 0, item_bytes_ = 1;
  std::optional<uint8_t> dtype_;
  std::string element_;   // name of an element type that frames do not have
  bool swapped_ = false;  // values are big-endian
  std::vector<uint64_t> shape_;
};

// Returns str(object); raises what __str__ raises.
std::string Text(nb::handle object);
std::string TypeName(nb::handle object);

// Returns its short name, "bf16", or "unknown".
const char* DtypeName(uint8_t dtype);
// Returns the bytes per value; 0 for blocks.
size_t DtypeBytes(uint8_t dtype);

// A list, tuple, array or other sequence of Python. Every access is checked, because the sequence
// may be another object's code, or change while the code of its elements runs.
class Sequence {
 public:
  // Throws TypeError for dictionaries, generators and other objects without an order.
  Sequence(nb::handle object, const char* what);
  size_t size() const { return size_; }
  nb::object operator[](size_t index) const;

 private:
  nb::handle object_;
  size_t size_ = 0;
};

// Returns a whole number that fits T: TypeError for other objects, ValueError for other numbers.
template <typename T>
T ParseInteger(nb::handle number, const char* what) {
  if (PyIndex_Check(number.ptr()) == 0) {
    throw nb::type_error(
        (std::string(what) + ": expected a whole number, not '" + TypeName(number) + "'").c_str());
  }
  const nb::object whole = nb::steal(PyNumber_Index(number.ptr()));
  if (!whole.is_valid()) throw nb::python_error();
  T value = 0;
  if (nb::try_cast(whole, value)) return value;
  throw nb::value_error((std::string(what) + ": expected a number from " +
                         std::to_string(std::numeric_limits<T>::min()) + " to " +
                         std::to_string(std::numeric_limits<T>::max()))
                            .c_str());
}

// Returns KVT_FAST to KVT_MAX for "fast", "default", "high", "max" or 1 to 4.
uint32_t ParseLevel(nb::handle level);
const char* LevelName(uint32_t level);

// The arguments of encode(); None if not given.
struct DescriptionArguments {
  nb::handle dtype, shape, order, role, tag, context;
};

// Describes an object: by the arguments first, then by its memory's own type and shape. Several
// pieces have no shape, and must agree on an element type if none is given.
kvt_desc Describe(const DescriptionArguments& arguments, std::span<const Buffer* const> pieces);
inline kvt_desc Describe(const DescriptionArguments& arguments, const Buffer& buffer) {
  const Buffer* const only = &buffer;
  return Describe(arguments, {&only, 1});
}

// Copies the 16 bytes of `context` (see hash128) to `out`; throws ValueError for another length.
void ParseContext(nb::handle context, uint8_t out[16]);

const char* OrderName(uint8_t order);
const char* RoleName(uint8_t role);

}  // namespace kvtool_python
