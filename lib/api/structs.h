// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "lib/api/kvtool.h"
#include "lib/core/base/error.h"

// The convention of growing structs, in one place: every struct of the headers begins with
// struct_size, and callers may have been compiled with an older version of it.
namespace kv::api {

// Throws kBadArgument, naming `what`, unless `holds`.
inline void Require(bool holds, std::string_view what) {
  if (!holds) throw Error(Finding::kBadArgument, std::string(what));
}

// Size of a struct in the first version that had it. A struct that grew has its own specialisation.
template <typename T>
inline constexpr size_t kFirstSize = sizeof(T);
template <>
inline constexpr size_t kFirstSize<kvt_info> = offsetof(kvt_info, segments);

// Returns true if any version up to this one had a struct of this size.
template <typename T>
constexpr bool IsKnownSize(size_t size) {
  return size >= kFirstSize<std::remove_const_t<T>> && size <= sizeof(T) && size % alignof(T) == 0;
}

// Throws kBadArgument with the text `what` if the struct is null or has an unknown size.
template <typename T>
void RequireSize(const T* given, std::string_view what) {
  Require(given != nullptr && IsKnownSize<T>(given->struct_size), what);
}

// Returns a complete copy of the caller's struct. Fields that an older caller lacks are zero.
template <typename T>
T Whole(const T* given, std::string_view what) {
  RequireSize(given, what);
  T whole = {};
  std::memcpy(static_cast<void*>(&whole), given, given->struct_size);
  whole.struct_size = sizeof whole;
  return whole;
}

// Fills the caller's struct up to the size that the caller knows.
template <typename T>
void Fill(T* to, T value) {
  value.struct_size = to->struct_size;
  std::memcpy(static_cast<void*>(to), &value, to->struct_size);
}

// A caller's array, whose elements are struct_size bytes apart.
template <typename T>
class Elements {
 public:
  // Throws kBadArgument with the text `what` if the array is null and not empty, ends beyond
  // memory, or if its first element has an unknown size.
  Elements(T* first, size_t count, std::string_view what) : first_(first), count_(count) {
    Require(Holds(first, count), what);
    if (count > 0) stride_ = first->struct_size;
  }
  // Returns true if memory can hold such an array.
  static bool Holds(const T* first, size_t count) {
    if (count == 0) return true;
    return first != nullptr && IsKnownSize<T>(first->struct_size) &&
           count <= (UINTPTR_MAX - reinterpret_cast<uintptr_t>(first)) / first->struct_size;
  }
  // Checks that all elements have the same size, for arrays that the caller has filled in.
  void RequireEqualSizes(std::string_view what) const {
    for (size_t i = 1; i < count_; ++i) Require(At(i)->struct_size == stride_, what);
  }
  size_t size() const { return count_; }
  // Returns the size in bytes.
  size_t bytes() const { return count_ * stride_; }
  T* At(size_t index) const {
    using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
    return reinterpret_cast<T*>(reinterpret_cast<Byte*>(first_) + index * stride_);
  }
  // Returns a complete copy.
  std::remove_const_t<T> operator[](size_t index) const {
    std::remove_const_t<T> whole = {};
    std::memcpy(static_cast<void*>(&whole), At(index), stride_);
    return whole;
  }
  void Put(size_t index, std::remove_const_t<T> value) const {
    value.struct_size = static_cast<uint32_t>(stride_);
    std::memcpy(static_cast<void*>(At(index)), &value, stride_);
  }

 private:
  T* first_;
  size_t count_, stride_ = 0;
};

// Returns an array that the call reads.
template <typename T>
Elements<const T> GivenElements(const T* first, size_t count, std::string_view what) {
  const Elements<const T> elements(first, count, what);
  elements.RequireEqualSizes(what);
  return elements;
}

}  // namespace kv::api
