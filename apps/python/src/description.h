// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "apps/python/src/buffers.h"
#include "lib/api/kvtool.h"

// The keyword arguments that describe what is encoded.
namespace kvtool_python {

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

// A whole number that fits T: TypeError for other objects, ValueError for other numbers.
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

// A shape of three axes; fewer or more are converted as docs/python.md says.
void SetShape(kvt_desc& desc, const std::vector<uint64_t>& shape);

// Returns the 16 bytes of hash128, or throws ValueError.
void ParseContext(nb::handle context, uint8_t out[16]);

const char* OrderName(uint8_t order);
const char* RoleName(uint8_t role);

}  // namespace kvtool_python
