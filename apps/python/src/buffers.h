// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Converts Python's kinds of memory to bytes with an element type and a shape.
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
  // A view by the buffer protocol, or none.
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
  nb::object owner_;                     // of a view that was created here
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

// Returns KVT_* for "bf16", "bfloat16", numpy.float16, ml_dtypes.bfloat16 or torch.bfloat16;
// ValueError if there is none.
uint8_t ParseDtype(nb::handle dtype);
// Returns its short name, "bf16", or "unknown".
const char* DtypeName(uint8_t dtype);
// Bytes per value; 0 for blocks.
size_t DtypeBytes(uint8_t dtype);

}  // namespace kvtool_python
